//! Links `probe` at a fixed address. A position-independent executable would have 283,000 relative relocations, mostly in DataFusion's
//! vtables. The dynamic loader applies them each time a command starts, which took half the time of a whole `probe gpt query`.

fn main() {
    println!("cargo:rustc-link-arg-bin=probe=-no-pie");
    println!("cargo:rerun-if-changed=build.rs");
}
