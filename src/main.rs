//! The `probe` command.

fn main() -> std::process::ExitCode {
    probe::cli::main()
}
