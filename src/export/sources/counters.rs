//! Tables of numbers that change: memory, the program's own metrics, processes and GPUs.

use std::io::Result;

use super::source::{DrawnTable, RowOwner, StepSelection};
use crate::export::drawing::TimelineDrawing;
use crate::export::row::{ExportColumn, ExportRow, HOST, OWN, hidden};

/// Bytes of a megabyte as tables count them.
const MB: f64 = 1e6;

pub(super) const MEMORY: DrawnTable = DrawnTable {
    table: "python.memory",
    whose: RowOwner::Process,
    within: StepSelection::Time,
    duration: "NULL",
    order: "",
    columns: &[hidden("device"), hidden("allocated"), hidden("reserved"), hidden("rss"), hidden("children_rss")],
    draw: memory,
};

fn memory(drawing: &mut TimelineDrawing<'_>, row: &ExportRow<'_>, _: &[ExportColumn]) -> Result<()> {
    let Some(process) = drawing.process(row) else { return Ok(()) };
    let device = row.text(OWN).unwrap_or_default();
    for (index, name) in ["allocated", "reserved", "resident", "resident in workers"].into_iter().enumerate() {
        let name = format!("memory {device} {name}");
        let value = row.float(OWN + 1 + index).map(|megabytes| megabytes * MB);
        drawing.count(process, row, (&name, "bytes"), value)?;
    }
    Ok(())
}

pub(super) const METRICS: DrawnTable = DrawnTable {
    table: "python.metrics",
    whose: RowOwner::Process,
    within: StepSelection::Step,
    duration: "NULL",
    order: "",
    columns: &[hidden("name"), hidden("value")],
    draw: metric,
};

fn metric(drawing: &mut TimelineDrawing<'_>, row: &ExportRow<'_>, _: &[ExportColumn]) -> Result<()> {
    let Some(process) = drawing.process(row) else { return Ok(()) };
    let name = row.text(OWN).unwrap_or_default();
    drawing.count(process, row, (name, ""), row.float(OWN + 1))
}

pub(super) const PROCESSES: DrawnTable = DrawnTable {
    table: "process.metrics",
    whose: RowOwner::Process,
    within: StepSelection::Time,
    duration: "NULL",
    order: "",
    columns: &[hidden("user_percent + system_percent")],
    draw: process,
};

fn process(drawing: &mut TimelineDrawing<'_>, row: &ExportRow<'_>, _: &[ExportColumn]) -> Result<()> {
    let Some(process) = drawing.process(row) else { return Ok(()) };
    drawing.count(process, row, ("processor time", "%"), row.float(OWN))
}

pub(super) const GPUS: DrawnTable = DrawnTable {
    table: "gpu.metrics",
    whose: RowOwner::Host,
    within: StepSelection::Time,
    duration: "NULL",
    order: "",
    columns: &[
        hidden("gpu"),
        hidden("utilization"),
        hidden("memory_used"),
        hidden("power"),
        hidden("temperature"),
        hidden("sm_clock"),
    ],
    draw: gpu,
};

fn gpu(drawing: &mut TimelineDrawing<'_>, row: &ExportRow<'_>, _: &[ExportColumn]) -> Result<()> {
    let Some(host) = row.text(HOST) else { return Ok(()) };
    let process = drawing.entry_without_process(host, &format!("GPUs of {host}"))?;
    let gpu = row.int(OWN).unwrap_or_default();
    let counters = [
        ("utilization", "%", 1.0),
        ("memory", "bytes", MB),
        ("power", "W", 1.0),
        ("temperature", "°C", 1.0),
        ("clock", "MHz", 1.0),
    ];
    for (index, (name, unit, factor)) in counters.into_iter().enumerate() {
        let name = format!("GPU {gpu} {name}");
        drawing.count(process, row, (&name, unit), row.float(OWN + 1 + index).map(|value| value * factor))?;
    }
    Ok(())
}
