//! Lets Rust tests of this crate link: an extension module finds Python's symbols in the interpreter that loads it, and
//! a test binary, which never calls them, has no interpreter.

fn main() {
    println!("cargo:rustc-link-arg=-Wl,--unresolved-symbols=ignore-all");
}
