//! Links `probe` at a fixed address. At any other, the loader has 283,000 addresses to correct each time that a command starts,
//! mostly DataFusion's tables of functions, and that took half the time of a whole `probe gpt query`.

fn main() {
    println!("cargo:rustc-link-arg-bin=probe=-no-pie");
    println!("cargo:rerun-if-changed=build.rs");
}
