//! `probe.store`: what the collector keeps, and where.

use crate::table::Text;

crate::table! {
    probe.store, Collector, "What the collector stores of each table of the run, and where. For a run that has ended, its state at the end. SUM(bytes_on_disk) is what PROBE_DISK limits, SUM(bytes_in_memory) is within PROBE_MEMORY.";
    sort: [run, table_name];
    examples: [
        "SELECT table_name, rows, bytes_in_memory / 1048576 AS memory_mib, bytes_on_disk / 1048576 AS disk_mib, files, rows_evicted FROM probe.store ORDER BY bytes_on_disk DESC",
        "SELECT SUM(bytes_on_disk) AS bytes_on_disk, MAX(problem) AS problem FROM probe.store",
    ];
    run: Text, "", "The run.";
    table_name: Text, "", "The table: python.torch_trace. (journal) is the log that keeps rows until they are in files, (texts) is the text of rows in memory.";
    rows: Option<i64>, "rows", "Rows that queries can read. All counts of rows are NULL for (journal) and (texts).";
    rows_in_memory: Option<i64>, "rows", "Of them, those in memory; they can be on disk too.";
    bytes_in_memory: i64, "bytes", "Bytes that those rows take.";
    rows_growing: Option<i64>, "rows", "Of those in memory, the ones in segments that still grow; they are in no file.";
    bytes_growing: i64, "bytes", "Bytes that those rows take.";
    rows_on_disk: Option<i64>, "rows", "Rows in files; they can be in memory too.";
    bytes_on_disk: i64, "bytes", "Size of the files.";
    files: i64, "files", "How many there are.";
    rows_evicted: Option<i64>, "rows", "Rows that were evicted at a limit; probe.drops has them by agent.";
    problem: Option<Text>, "", "Why rows are kept in memory only at the moment: the disk cannot be written. NULL when it can.";
}
