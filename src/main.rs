//! The `probe` command.

/// Counts the allocations of queries, and nothing else.
#[global_allocator]
static ALLOCATOR: probe_query::CountingAllocator = probe_query::CountingAllocator;

fn main() -> std::process::ExitCode {
    probe::cli::main()
}
