//! The `probe` command.

/// Counts what questions allocate, and nothing else.
#[global_allocator]
static ALLOCATOR: probe_query::CountingAllocator = probe_query::CountingAllocator;

fn main() -> std::process::ExitCode {
    probe::cli::main()
}
