//! `probe.store`: what the collector keeps, and where.

use crate::table::Text;

crate::table! {
    probe.store, Collector, "What the collector keeps of each table of the run, and where; of a run that has ended, as it was at its end. SUM(bytes_on_disk) is what PROBE_DISK limits, SUM(bytes_in_memory) is within PROBE_MEMORY.";
    sort: [run, table_name];
    examples: [
        "SELECT table_name, rows, bytes_in_memory / 1048576 AS memory_mib, bytes_on_disk / 1048576 AS disk_mib, files, rows_evicted FROM probe.store ORDER BY bytes_on_disk DESC",
        "SELECT SUM(bytes_on_disk) AS bytes_on_disk, MAX(problem) AS problem FROM probe.store",
    ];
    run: Text, "", "The run.";
    table_name: Text, "", "The table: python.torch_trace. (journal) is what makes rows durable before they are in files, (texts) the text of rows in memory.";
    rows: Option<i64>, "rows", "Rows that can be asked for; NULL for (journal) and (texts), as all counts of rows.";
    rows_in_memory: Option<i64>, "rows", "Of them, those in memory; they can be on disk too.";
    bytes_in_memory: i64, "bytes", "What those take.";
    rows_growing: Option<i64>, "rows", "Of those in memory, the ones in segments that still grow; they are in no file.";
    bytes_growing: i64, "bytes", "What those take.";
    rows_on_disk: Option<i64>, "rows", "Rows in files; they can be in memory too.";
    bytes_on_disk: i64, "bytes", "What the files take.";
    files: i64, "files", "How many there are.";
    rows_evicted: Option<i64>, "rows", "Rows that had to go at one of the limits; probe.drops says whose.";
    problem: Option<Text>, "", "Why rows are kept in memory only, for now: the disk takes nothing; NULL where it does.";
}
