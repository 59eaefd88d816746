//! Exports of Nsight Systems in the schemas of several years: who launched what, within which ranges, of which process.

mod hostile;

use std::path::Path;

use rusqlite::Connection;

use super::table_rows;
use crate::{ImportedCapture, ModuleRange, RangePatterns, StepRange, TraceFile, TraceFormat, import};

/// Nanoseconds from 1970 at which sessions begin.
const START: i64 = 1_767_225_600_000_000_000;

/// Columns that later exports have between those of earlier ones.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Year {
    Of2022,
    Of2026,
}

/// Id of a thread as exports write it.
fn global(pid: i64, thread: i64) -> i64 {
    1 << 48 | pid << 24 | thread
}

/// A database that is written to, and the tables of every export.
fn database(path: &Path, year: Year) -> Connection {
    let connection = Connection::open(path).unwrap();
    connection.execute_batch("PRAGMA synchronous = OFF").unwrap();
    let green = if year == Year::Of2026 { "greenContextId INTEGER, " } else { "" };
    let about = if year == Year::Of2026 { "META_DATA_EXPORT" } else { "EXPORT_META_DATA" };
    let sql = format!(
        "CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
         CREATE TABLE {about} (name TEXT NOT NULL, value TEXT);
         INSERT INTO {about} VALUES ('EXPORT_PRODUCT_VERSION', '2026.2.1'), ('EXPORT_SCHEMA_VERSION', '3.25.0'), ('EXPORT_USER', 'x');
         CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER, utcTime TEXT);
         INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES ({START}, '2026-01-01');
         CREATE TABLE TARGET_INFO_SYSTEM_ENV (globalVid INTEGER, devStateName TEXT, name TEXT, nameEnum INTEGER, value TEXT);
         INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES (0, '', 'Hostname', 1, 'node7'), (0, '', 'CudaDriverVersion', 2, '13000');
         CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER, contextId INTEGER,
             {green}streamId INTEGER, correlationId INTEGER, globalPid INTEGER, demangledName INTEGER, shortName INTEGER,
             registersPerThread INTEGER, gridX INTEGER, gridY INTEGER, gridZ INTEGER, blockX INTEGER, blockY INTEGER, blockZ INTEGER,
             staticSharedMemory INTEGER, dynamicSharedMemory INTEGER, graphNodeId INTEGER);
         CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER,
             globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL);"
    );
    connection.execute_batch(&sql).unwrap();
    if year == Year::Of2022 {
        // All tables of the year are there, with nothing in them.
        let empty = "CREATE TABLE OSRT_API (start INTEGER); CREATE TABLE CUDNN_EVENTS (start INTEGER);";
        connection.execute_batch(&format!("{COPIES}{RANGES}{empty}")).unwrap();
    }
    connection
}

const COPIES: &str =
    "CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER,
    correlationId INTEGER, globalPid INTEGER, bytes INTEGER, copyKind INTEGER, srcKind INTEGER, dstKind INTEGER);";
const RANGES: &str =
    "CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, text TEXT, globalTid INTEGER,
    textId INTEGER, jsonText TEXT);";

/// Writes rows into an export.
struct Export {
    connection: Connection,
    strings: i64,
}

impl Export {
    fn of(path: &Path, year: Year) -> Self {
        Self { connection: database(path, year), strings: 0 }
    }

    fn string(&mut self, text: &str) -> i64 {
        self.strings += 1;
        self.connection.execute("INSERT INTO StringIds VALUES (?1, ?2)", (self.strings, text)).unwrap();
        self.strings
    }

    fn create(&self, sql: &str) {
        self.connection.execute_batch(&sql.replace("CREATE TABLE", "CREATE TABLE IF NOT EXISTS")).unwrap();
    }

    /// A kernel of a process on a device.
    fn kernel(&mut self, name: &str, (pid, device): (i64, i64), (start, end): (i64, i64), correlation: i64) {
        let name = self.string(name);
        let sql = "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL (start, end, deviceId, streamId, correlationId, globalPid,
            demangledName, registersPerThread, gridX, gridY, gridZ, blockX, blockY, blockZ, staticSharedMemory, dynamicSharedMemory)
            VALUES (?1, ?2, ?3, 7, ?4, ?5, ?6, 32, 8, 2, 1, 256, 1, 1, 1024, 512)";
        let values = (start, end, device, correlation, global(pid, 0), name);
        self.connection.execute(sql, values).unwrap();
    }

    fn call(&mut self, name: &str, (pid, thread): (i64, i64), (start, end): (i64, i64), correlation: i64) {
        let name = self.string(name);
        let sql = "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?1, ?2, 0, ?3, ?4, ?5)";
        self.connection.execute(sql, (start, end, global(pid, thread), correlation, name)).unwrap();
    }

    /// A range; its text is in the row, or a string of the file.
    fn range(
        &mut self,
        kind: i64,
        text: &str,
        (pid, thread): (i64, i64),
        (start, end): (i64, Option<i64>),
        is_registered: bool,
    ) {
        self.create(RANGES);
        let id = is_registered.then(|| self.string(text));
        let text = (!is_registered).then_some(text);
        let sql =
            "INSERT INTO NVTX_EVENTS (start, end, eventType, text, globalTid, textId) VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
        self.connection.execute(sql, (start, end, kind, text, global(pid, thread), id)).unwrap();
    }

    fn copy(&mut self, pid: i64, (start, end): (i64, i64), correlation: i64, bytes: i64) {
        self.create(COPIES);
        let sql = "INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (?1, ?2, 0, 7, ?3, ?4, ?5, 1, 1, 2)";
        self.connection.execute(sql, (start, end, correlation, global(pid, 0), bytes)).unwrap();
    }
}

/// A step with an operator of emit_nvtx that launches a kernel, a range beside it that copies, a kernel that was launched before
/// the capture, and what becomes no row.
fn fill(export: &mut Export, pid: i64, device: i64) {
    let thread = (pid, pid + 1);
    export.range(59, "iteration 12", thread, (1000, Some(9000)), true);
    export.range(59, "aten::linear, op_id = 5, sizes = [[2, 3]]", thread, (1500, Some(4000)), false);
    export.range(59, "aten::addmm, op_id = 6, seq = 40", thread, (2000, Some(3500)), false);
    export.call("cudaLaunchKernel_v7000", thread, (2500, 3000), 1);
    export.range(59, "load", thread, (5000, Some(6000)), true);
    export.call("cudaMemcpyAsync_v3020", thread, (5100, 5400), 2);
    export.range(60, "prefetch", thread, (5500, Some(12_000)), false);
    export.range(59, "never ended", thread, (8000, None), false);
    export.range(34, "mark", thread, (8100, None), false);
    export.range(75, "domain", thread, (-5, None), false);
    export.kernel("void gemm<float>(float*)", (pid, device), (3200, 4200), 1);
    export.kernel("ncclDevKernel_AllReduce", (pid, device), (10, 60), 99);
    export.copy(pid, (6000, 8000), 2, 4000);
}

fn imported(path: &Path, pattern: Option<&str>, directory: &Path) -> probe_common::error::Result<Vec<ImportedCapture>> {
    let capture = path.file_name().unwrap().to_str().unwrap().to_owned();
    let file = TraceFile { path: path.to_owned(), capture, named: true, format: TraceFormat::NsightSystems };
    let steps = pattern.map(|pattern| StepRange::parse(pattern).unwrap());
    Ok(import(&[file], "run@1", directory, &RangePatterns { steps, modules: None }, &mut |_| ())?.captures)
}

#[test]
fn an_export_of_any_year_is_kernels_calls_operators_and_spans() {
    for (year, name) in [(Year::Of2022, "a b%?#.rank3.sqlite"), (Year::Of2026, "rank_3.db")] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(name);
        fill(&mut Export::of(&path, year), 41, 0);
        let captures = imported(&path, Some(r"^iteration (\d+)$"), directory.path()).unwrap();
        let [capture] = &captures[..] else { panic!("{captures:?}") };
        let rows = capture.rows;
        assert_eq!((capture.rank, &capture.problem, capture.began), (Some(3), &None, Some(START + 10)));
        assert_eq!((rows.operators, rows.kernels, rows.launches, rows.spans, capture.events), (2, 3, 2, 3, 13));
        let left_out: Vec<_> = capture.left_out.iter().map(|(reason, events)| (&**reason, *events)).collect();
        let expected =
            [("NVTX mark", 1), ("NVTX name of a thread, category or domain", 1), ("NVTX range without an end", 1)];
        assert_eq!(left_out, expected);

        let columns =
            ["name", "kind", "category", "operator", "step", "grid", "shared_memory", "bytes", "launch_delay"];
        let mut kernels = table_rows(directory.path(), "gpu.kernels", &columns);
        kernels.sort();
        let expected = [
            ["Memcpy HtoD (Pinned -> Device)", "memcpy", "memory", "load", "12", "", "", "4000", "6e-7"],
            ["ncclDevKernel_AllReduce", "kernel", "communication", "", "", "[8,2,1]", "1536", "", ""],
            ["void gemm<float>(float*)", "kernel", "computation", "aten::addmm", "12", "[8,2,1]", "1536", "", "2e-7"],
        ];
        assert_eq!(kernels, expected);
        let columns = [
            "name",
            "parent",
            "depth",
            "step",
            "self_duration",
            "device_duration",
            "input_shapes",
            "sequence",
            "external_id",
        ];
        let mut operators = table_rows(directory.path(), "python.operators", &columns);
        operators.sort();
        let expected = [
            ["aten::addmm", "aten::linear", "2", "12", "1e-6", "1e-6", "", "40", "6"],
            ["aten::linear", "iteration 12", "1", "12", "1e-6", "1e-6", "[[2, 3]]", "", "5"],
        ];
        assert_eq!(operators, expected);
        let mut spans = table_rows(
            directory.path(),
            "python.spans",
            &["name", "kind", "parent", "depth", "step", "duration", "thread"],
        );
        spans.sort();
        let expected = [
            ["iteration 12", "nvtx", "", "0", "12", "8e-6", "42"],
            ["load", "nvtx", "iteration 12", "1", "12", "1e-6", "42"],
            ["prefetch", "nvtx", "", "0", "12", "6.5e-6", "42"],
        ];
        assert_eq!(spans, expected);
        let calls =
            table_rows(directory.path(), "gpu.launches", &["name", "operator", "correlation", "kernels", "thread"]);
        assert_eq!(calls[0], ["cudaLaunchKernel", "aten::addmm", "1", "1", "42"]);
        let columns =
            ["tool", "steps", "first_step", "clock", "host", "pid", "rank_source", "versions", "without_launch"];
        let expected = ["nsight-systems", "1", "12", "unix", "node7", "41", "name"];
        let found = &table_rows(directory.path(), "python.captures", &columns)[0];
        assert_eq!(found[..7], expected);
        assert_eq!(
            found[7..],
            ["{\"cuda_driver\":\"13000\",\"nsight_systems\":\"2026.2.1\",\"schema\":\"3.25.0\"}", "1"]
        );
    }
}

#[test]
fn ranges_that_a_pattern_matches_are_modules_of_what_runs_and_is_launched_in_them() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("modules.sqlite");
    let mut export = Export::of(&path, Year::Of2026);
    let (forward, backward) = ((41, 42), (41, 43));
    export.range(59, "module blocks", forward, (1000, Some(5000)), true);
    export.range(59, "module blocks.0.attn", forward, (1100, Some(3000)), true);
    export.range(59, "aten::mm, op_id = 1, seq = 40", forward, (1500, Some(2500)), false);
    export.call("cudaLaunchKernel_v7000", forward, (1800, 1900), 1);
    export.range(59, "load", forward, (3100, Some(4000)), true);
    export.call("cudaMemcpyAsync_v3020", forward, (3200, 3300), 2);
    export.range(59, "MmBackward0, op_id = 9, seq = 40", backward, (6000, Some(7000)), false);
    export.call("cudaLaunchKernel_v7000", backward, (6100, 6200), 3);
    export.range(60, "module not.nested", forward, (7000, Some(9000)), true);
    export.range(59, "aten::add, op_id = 12, seq = 50", forward, (7500, Some(8000)), false);
    for (name, time, launch) in [("gemm", 2000, 1), ("dgrad", 6500, 3)] {
        export.kernel(name, (41, 0), (time, time + 100), launch);
    }
    export.copy(41, (3400, 3500), 2, 4000);
    drop(export);
    let of = |modules: Option<&str>| {
        let file =
            TraceFile { path: path.clone(), capture: "x".into(), named: true, format: TraceFormat::NsightSystems };
        let ranges =
            RangePatterns { steps: None, modules: modules.map(|pattern| ModuleRange::parse(pattern).unwrap()) };
        let scratch = tempfile::tempdir().unwrap();
        let rows = import(&[file], "run@1", scratch.path(), &ranges, &mut |_| ()).unwrap().captures[0].rows;
        assert_eq!((rows.operators, rows.kernels, rows.spans), (3, 3, 4), "each range is a row all the same");
        let sorted = |table: &str, columns: &[&str]| {
            let mut rows = table_rows(scratch.path(), table, columns);
            rows.sort();
            rows
        };
        (
            sorted("gpu.kernels", &["name", "module", "operator"]),
            sorted("python.operators", &["name", "module", "stage"]),
        )
    };
    let (kernels, operators) = of(Some(r"^module (.+)$"));
    let expected = [
        ["Memcpy HtoD (Pinned -> Device)", "blocks", "load"],
        ["dgrad", "blocks.0.attn", "MmBackward0"],
        ["gemm", "blocks.0.attn", "aten::mm"],
    ];
    assert_eq!(kernels, expected);
    let expected =
        [["MmBackward0", "blocks.0.attn", "backward"], ["aten::add", "", ""], ["aten::mm", "blocks.0.attn", "forward"]];
    assert_eq!(operators, expected);
    let (kernels, _) = of(None);
    assert!(kernels.iter().all(|row| row[1].is_empty()), "nobody said that these ranges are modules: {kernels:?}");
}

#[test]
fn processes_of_a_file_keep_their_own_launches_and_have_the_rank_of_their_device() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("both.sqlite");
    let mut export = Export::of(&path, Year::Of2026);
    fill(&mut export, 111, 0);
    fill(&mut export, 112, 1);
    export.kernel("only of 112", (112, 1), (20_000, 20_100), 3);
    export.call("cudaLaunchKernel_v7000", (111, 112), (15_000, 15_100), 3);
    export.create("CREATE TABLE OSRT_API (start INTEGER, end INTEGER)");
    export.create("INSERT INTO OSRT_API VALUES (1, 2), (2, 3)");
    let captures = imported(&path, None, directory.path()).unwrap();
    let named: Vec<_> = captures.iter().map(|capture| (&*capture.name, capture.rank, capture.rows.kernels)).collect();
    assert_eq!(named, [("both.sqlite/111", Some(0), 3), ("both.sqlite/112", Some(1), 4)]);
    let left_out =
        |index: usize| captures[index].left_out.iter().find(|(reason, _)| reason.contains("operating system"));
    assert_eq!((left_out(0).map(|(_, rows)| *rows), left_out(1)), (Some(2), None));
    let rows = table_rows(directory.path(), "gpu.kernels", &["name", "rank", "pid", "launch_kernels", "step"]);
    let only = rows.iter().find(|row| row[0] == "only of 112").unwrap();
    assert_eq!(only[1..], ["1", "112", "", ""], "a call of another process has the same number");
    let sources = table_rows(directory.path(), "python.captures", &["rank_source", "steps"]);
    assert_eq!(sources, [["device", "0"], ["device", "0"]]);
}

#[test]
fn a_packed_export_is_unpacked_and_one_without_dates_has_none() {
    let directory = tempfile::tempdir().unwrap();
    let plain = directory.path().join("plain.sqlite");
    let mut export = Export::of(&plain, Year::Of2026);
    fill(&mut export, 41, 0);
    export.create("DELETE FROM TARGET_INFO_SESSION_START_TIME");
    drop(export);
    let path = directory.path().join("packed.sqlite.gz");
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut packed, &std::fs::read(&plain).unwrap()).unwrap();
    std::fs::write(&path, packed.finish().unwrap()).unwrap();
    let scratch = tempfile::tempdir().unwrap();
    let captures = imported(&path, None, scratch.path()).unwrap();
    assert_eq!((captures[0].rows.kernels, captures[0].began), (3, None));
    assert_eq!(table_rows(scratch.path(), "python.captures", &["clock"]), [["relative"]]);
    let left: Vec<_> = std::fs::read_dir(scratch.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(left.iter().all(|path| path.is_dir()), "what was unpacked is gone: {left:?}");
}
