//! Pages of Nsight Compute: what becomes a row, and damaged pages.

use std::collections::BTreeMap;
use std::path::Path;

use proptest::prelude::*;

use super::table_rows;
use crate::{ImportedCapture, RangePatterns, TraceFile, TraceFormat, import};

const HEADER: &str = "\"ID\",\"Process ID\",\"Process Name\",\"Host Name\",\"Kernel Name\",\"Context\",\"Stream\",\"Block Size\",\"Grid Size\",\"Device\",\"CC\",\"Section Name\",\"Metric Name\",\"Metric Unit\",\"Metric Value\",\"Rule Name\",\"Rule Type\",\"Rule Description\",\"Estimated Speedup Type\",\"Estimated Speedup\"";

fn metric(id: u32, pid: u32, section: &str, name: &str, unit: &str, value: &str) -> String {
    format!(
        "\"{id}\",\"{pid}\",\"python3\",\"node\",\"gemm(float, int)\",\"1\",\"7\",\"(256, 1, 1)\",\"(1024, 2, 1)\",\"0\",\"9.0\",\"{section}\",\"{name}\",\"{unit}\",\"{value}\",\n"
    )
}

fn imported(text: &[u8], directory: &Path) -> probe_common::error::Result<Vec<ImportedCapture>> {
    let path = directory.join("rank-5.csv");
    std::fs::write(&path, text).unwrap();
    let file = TraceFile { path, capture: "rank-5.csv".into(), named: true, format: TraceFormat::NsightCompute };
    Ok(import(&[file], "run@1", directory, &RangePatterns::default(), &mut |_| ())?.captures)
}

/// Kernel, section, metric, unit, value, text of every row.
fn rows(directory: &Path) -> Vec<Vec<String>> {
    table_rows(directory, "gpu.kernel_metrics", &["id", "pid", "section", "metric", "unit", "value", "text"])
}

#[test]
fn metrics_and_advice_of_a_details_page_are_rows() {
    let directory = tempfile::tempdir().unwrap();
    let rule = "\"0\",\"41\",\"python3\",\"node\",\"gemm(float, int)\",\"1\",\"7\",\"(256, 1, 1)\",\"(1024, 2, 1)\",\"0\",\"9.0\",\"SpeedOfLight\",\"\",\"\",\"\",\"SOLBottleneck\",\"OPT\",\"Memory is \"\"hot\"\",\nlook there.\",\"local\",\"98.86\"\n";
    let text = [
        "==PROF== Connected to process 41 (/usr/bin/python3)\nloss 0.5\n".to_owned(),
        format!("{HEADER}\n"),
        metric(0, 41, "GPU Speed Of Light Throughput", "Duration", "ns", "21,058,944"),
        metric(0, 41, "GPU Speed Of Light Throughput", "Memory Throughput", "%", "61.84"),
        metric(0, 41, "Memory Workload Analysis", "Memory Throughput", "byte/s", "196,456,177,859.63"),
        metric(0, 41, "Launch Statistics", "Function Cache Configuration", "", "CachePreferNone"),
        metric(0, 41, "Occupancy", "Achieved Occupancy", "%", "n/a"),
        rule.to_owned(),
        "==WARNING== Backing up device memory\n".to_owned(),
    ];
    let captures = imported(text.concat().as_bytes(), directory.path()).unwrap();
    let [capture] = &captures[..] else { panic!("{captures:?}") };
    assert_eq!((capture.rank, capture.events, capture.rows.metrics, &capture.problem), (Some(5), 7, 6, &None));
    let left_out: BTreeMap<_, _> = capture.left_out.iter().cloned().collect();
    assert_eq!(left_out, [("line before the header".into(), 2), ("no record of the page".into(), 1)].into());
    let expected = [
        ["0", "41", "GPU Speed Of Light Throughput", "Duration", "ns", "21058944.0", ""],
        ["0", "41", "GPU Speed Of Light Throughput", "Memory Throughput", "%", "61.84", ""],
        ["0", "41", "Memory Workload Analysis", "Memory Throughput", "byte/s", "196456177859.63", ""],
        ["0", "41", "Launch Statistics", "Function Cache Configuration", "", "", "CachePreferNone"],
        ["0", "41", "Occupancy", "Achieved Occupancy", "%", "", "n/a"],
        ["0", "41", "SpeedOfLight", "", "", "", ""],
    ];
    assert_eq!(rows(directory.path()), expected);
    let columns = ["kernel", "rule", "rule_type", "advice", "speedup", "speedup_type", "grid", "block", "stream"];
    let advice = table_rows(directory.path(), "gpu.kernel_metrics", &columns).pop().unwrap();
    let expected = ["gemm(float, int)", "SOLBottleneck", "OPT", "Memory is \"hot\",\nlook there.", "98.86", "local"];
    assert_eq!(advice[..6], expected);
    assert_eq!(advice[6..], ["[1024,2,1]", "[256,1,1]", "7"]);
}

#[test]
fn a_page_is_recognized_by_its_header_alone() {
    let format = |text: &str| TraceFormat::detect(&crate::head::FileHead { bytes: text.as_bytes().to_vec() });
    for text in [format!("{HEADER}\n"), format!("loss 0.5\n{HEADER}\n")] {
        assert_eq!(format(&text), Some(TraceFormat::NsightCompute), "{text}");
    }
}

#[test]
fn a_page_of_another_language_and_of_two_processes() {
    let directory = tempfile::tempdir().unwrap();
    let text = [
        format!("\u{feff}{HEADER}\n"),
        metric(0, 41, "s", "Duration", "us", "1.234"),
        metric(0, 42, "s", "Occupancy", "%", "65,77"),
        metric(1, 41, "s", "Cycles", "cycle", "12.319.469"),
    ];
    let captures = imported(text.concat().as_bytes(), directory.path()).unwrap();
    let named: Vec<_> = captures.iter().map(|capture| (&*capture.name, capture.rank, capture.rows.metrics)).collect();
    assert_eq!(named, [("rank-5.csv/41", None, 2), ("rank-5.csv/42", None, 1)]);
    let expected = [
        ["0", "41", "s", "Duration", "us", "1234.0", ""],
        ["1", "41", "s", "Cycles", "cycle", "12319469.0", ""],
        ["0", "42", "s", "Occupancy", "%", "65.77", ""],
    ];
    assert_eq!(rows(directory.path()), expected);
}

#[test]
fn a_raw_page_is_a_row_a_metric_with_the_unit_of_the_second_line() {
    let directory = tempfile::tempdir().unwrap();
    let text = "\"ID\",\"Process ID\",\"Process Name\",\"Host Name\",\"Kernel Name\",\"Context\",\"Stream\",\"Block Size\",\"Grid Size\",\"Device\",\"CC\",\"gpu__time_duration.sum\",\"launch__func_cache_config\",\"sm__warps_active.avg.pct_of_peak_sustained_active\"\n\
        \"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"nsecond\",\"\",\"%\"\n\
        \"0\",\"41\",\"python3\",\"node\",\"gemm\",\"1\",\"7\",\"(1, 1, 1)\",\"(1, 1, 1)\",\"0\",\"9.0\",\"1,536\",\"CachePreferNone\",\"12.5\"\n\
        \"1\",\"41\",\"python3\",\"node\",\"gemm\",\"1\",\"7\",\"(1, 1, 1)\",\"(1, 1, 1)\",\"0\",\"9.0\",\"1,600\",\"\",\"n/a\"\n";
    let captures = imported(text.as_bytes(), directory.path()).unwrap();
    assert_eq!((captures[0].events, captures[0].rows.metrics), (2, 5));
    let warps = "sm__warps_active.avg.pct_of_peak_sustained_active";
    let expected = [
        ["0", "41", "", "gpu__time_duration.sum", "nsecond", "1536.0", ""],
        ["0", "41", "", "launch__func_cache_config", "", "", "CachePreferNone"],
        ["0", "41", "", warps, "%", "12.5", ""],
        ["1", "41", "", "gpu__time_duration.sum", "nsecond", "1600.0", ""],
        ["1", "41", "", warps, "%", "", "n/a"],
    ];
    assert_eq!(rows(directory.path()), expected);
}

#[test]
fn what_is_no_page_is_refused_and_what_has_no_end_is_read_to_a_bound() {
    let directory = tempfile::tempdir().unwrap();
    let refused = |text: &[u8]| imported(text, directory.path()).unwrap_err().to_string();
    assert!(refused(b"a,b\n1,2\n").contains("no line of it begins with \"ID\""));
    assert!(refused(b"").contains("no line of it begins with \"ID\""));
    assert!(refused(b"\"ID\",\"Name\"\n\"0\",\"x\"\n").contains("no ID and Kernel Name"));
    assert!(refused(HEADER.as_bytes()).contains("there is no kernel in it"));

    let mut text = format!("{HEADER}\n{}\"1\",\"", metric(0, 41, "s", "Duration", "ns", "7")).into_bytes();
    text.resize(text.len() + (17 << 20), b'x');
    let captures = imported(&text, directory.path()).unwrap();
    let problem = captures[0].problem.as_deref().unwrap();
    assert!(problem.contains("after 1 records: a record is longer than 16 MiB"), "{problem}");
    assert_eq!(captures[0].rows.metrics, 1);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    /// A page that is cut anywhere gives the rows before the cut, and says so where a record is not whole.
    #[test]
    fn a_cut_page_keeps_what_came_before(records in 1..5_usize, cut in any::<prop::sample::Index>()) {
        let directory = tempfile::tempdir().unwrap();
        let one = metric(0, 41, "s", "Duration", "ns", "1,024");
        let text = format!("{HEADER}\n{}", one.repeat(records));
        let cut = cut.index(text.len());
        let whole = cut.saturating_sub(HEADER.len() + 1) / one.len();
        match imported(&text.as_bytes()[..cut], directory.path()) {
            Ok(captures) => {
                let rows = captures[0].rows.metrics;
                // Of the next record only the comma and the end of its line may be missing.
                let rest = cut - (HEADER.len() + 1 + whole * one.len());
                let is_whole = rest + 2 >= one.len();
                prop_assert_eq!(rows, (whole + usize::from(is_whole)) as i64);
                prop_assert_eq!(captures[0].problem.is_some(), rest > 0 && !is_whole);
            }
            Err(_) => prop_assert_eq!(whole, 0),
        }
    }

    /// Whatever stands in its fields, a record that is quoted as CSV asks gives them back.
    #[test]
    fn fields_come_back_as_they_were_written(section in "[a-z\"\\n,é]{1,12}", name in "[A-Z\",]{1,8}") {
        let directory = tempfile::tempdir().unwrap();
        let mut text = csv::WriterBuilder::new().quote_style(csv::QuoteStyle::Always).flexible(true).from_writer(Vec::new());
        let header: Vec<&str> = HEADER.trim_matches('"').split("\",\"").collect();
        text.write_record(&header).unwrap();
        let fields = ["3", "41", "p", "h", "k", "1", "7", "(1, 1, 1)", "(1, 1, 1)", "0", "9.0", &section, &name, "", "1.5"];
        text.write_record(fields).unwrap();
        imported(&text.into_inner().unwrap(), directory.path()).unwrap();
        let rows = rows(directory.path());
        prop_assert_eq!(&rows[0][2..4], &[section.trim().to_owned(), name]);
    }
}
