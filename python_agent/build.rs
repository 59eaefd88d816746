//! How the extension is linked.

use std::env;
use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-env-changed=RUSTC_LINKER");
    let linker = env::var("RUSTC_LINKER").unwrap_or_default();
    if Path::new(&linker).file_name().is_some_and(|name| name.to_string_lossy().starts_with("zigcc")) {
        use_the_systems_unwinder();
    } else {
        // An extension module finds Python's symbols in the interpreter that loads it, and a test binary, which never calls
        // them, has no interpreter.
        println!("cargo:rustc-link-arg=-Wl,--unresolved-symbols=ignore-all");
    }
}

/// Zig links an unwinder of its own into what it links. Python ends threads by unwinding (`pthread_exit`), and C++ throws
/// through our frames: both use the system's unwinder, and one unwinder can't read the other's state.
fn use_the_systems_unwinder() {
    let found = Command::new("cc").arg("-print-file-name=libgcc_s.so.1").output();
    match found.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()) {
        Ok(library) if library.starts_with('/') => println!("cargo:rustc-cdylib-link-arg={library}"),
        other => panic!("cc knows no libgcc_s.so.1, which the agent is linked with: {other:?}"),
    }
}
