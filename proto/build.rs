//! Compiles the messages with protox, so that no protoc is needed on the machine.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Files, not their folder: in a fresh checkout the time of a folder is new.
    for file in std::fs::read_dir("proto/probe/v1")? {
        println!("cargo:rerun-if-changed={}", file?.path().display());
    }
    let files =
        protox::compile(["probe/v1/agent.proto", "probe/v1/control.proto", "probe/v1/journal.proto"], ["proto"])?;
    // Payloads stay slices of the received frame: no copy between the socket and the column.
    tonic_prost_build::configure().bytes(".").compile_fds(files)?;
    Ok(())
}
