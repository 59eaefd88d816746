//! Tables of the agent and the collector: steps, modules, collectives, and what interrupts them.

use std::io::Result;

use probe_export::Flow;
use probe_proto::stage::Stage;

use super::source::{DrawnTable, RowOwner, StepSelection};
use crate::export::drawing::{TimelineDrawing, TrackKey};
use crate::export::pending_flows::number;
use crate::export::row::{ExportColumn, ExportRow, OWN, hidden, named, plain};

pub(super) const STEPS: DrawnTable = DrawnTable {
    table: "python.steps",
    whose: RowOwner::Process,
    within: StepSelection::Step,
    duration: "duration",
    order: "",
    columns: &[
        plain("step"),
        plain("data_time"),
        plain("forward_time"),
        plain("backward_time"),
        plain("optimizer_time"),
        plain("comm_time"),
        plain("validation_time"),
        plain("checkpoint_time"),
        plain("other_time"),
        plain("samples"),
        plain("clock"),
        plain("warmup"),
    ],
    draw: step,
};

fn step(drawing: &mut TimelineDrawing<'_>, row: &ExportRow<'_>, columns: &[ExportColumn]) -> Result<()> {
    let Some(process) = drawing.process(row) else { return Ok(()) };
    let step = row.int(OWN).unwrap_or_default();
    let (category, name) = match drawing.as_profiler {
        true => ("user_annotation", format!("ProfilerStep#{step}")),
        false => ("step", format!("step {step}")),
    };
    drawing.slice(process, TrackKey::Steps, row, (category, &name), &row.arguments(columns), &[]).map(drop)
}

pub(super) const MODULES: DrawnTable = DrawnTable {
    table: "python.torch_trace",
    whose: RowOwner::Process,
    within: StepSelection::Step,
    duration: "COALESCE(total_duration, host_duration)",
    order: ", depth",
    columns: &[
        hidden("thread"),
        plain("module"),
        plain("stage"),
        plain("device"),
        named("module_type", "type"),
        plain("step"),
        plain("micro_step"),
        named("duration", "own_duration"),
        named("host_duration", "own_host_duration"),
        plain("input_shape"),
        plain("allocated_delta"),
        plain("compiled"),
    ],
    draw: module,
};

fn module(drawing: &mut TimelineDrawing<'_>, row: &ExportRow<'_>, columns: &[ExportColumn]) -> Result<()> {
    let Some(process) = drawing.process(row) else { return Ok(()) };
    let (thread, stage) = (row.int(OWN).unwrap_or_default(), row.text(OWN + 2).unwrap_or_default());
    let module = row.text(OWN + 1).unwrap_or("outside of modules");
    let name = if stage == Stage::Forward.as_str() { module.to_owned() } else { format!("{module} {stage}") };
    // The slice begins on the host and lasts as long as on the device, which is no interval of the thread.
    let track = match row.text(OWN + 3) {
        Some(device) if device != "cpu" => TrackKey::DeviceTimed(thread),
        _ => TrackKey::Thread(thread),
    };
    drawing.slice(process, track, row, ("module", &name), &row.arguments(columns), &[]).map(drop)
}

pub(super) const SPANS: DrawnTable = DrawnTable {
    table: "python.spans",
    whose: RowOwner::Process,
    within: StepSelection::Step,
    duration: "duration",
    order: ", depth",
    columns: &[hidden("thread"), hidden("name"), plain("kind"), plain("step")],
    draw: on_thread::<0>,
};

pub(super) const CHECKPOINTS: DrawnTable = DrawnTable {
    table: "python.checkpoints",
    whose: RowOwner::Process,
    within: StepSelection::Step,
    duration: "duration",
    order: "",
    columns: &[hidden("thread"), hidden("kind"), plain("path"), plain("bytes"), plain("error"), plain("step")],
    draw: on_thread::<1>,
};

pub(super) const PAUSES: DrawnTable = DrawnTable {
    table: "python.pauses",
    whose: RowOwner::Process,
    within: StepSelection::Step,
    duration: "duration",
    order: "",
    columns: &[
        hidden("thread"),
        hidden("kind"),
        plain("part"),
        plain("generation"),
        plain("collected"),
        plain("compile_id"),
        plain("step"),
    ],
    draw: on_thread::<2>,
};

pub(super) const COPIES: DrawnTable = DrawnTable {
    table: "python.copies",
    whose: RowOwner::Process,
    within: StepSelection::Step,
    duration: "duration",
    order: "",
    columns: &[
        hidden("thread"),
        hidden("'copy ' || direction"),
        plain("operation"),
        plain("bytes"),
        plain("source"),
        plain("destination"),
        plain("blocking"),
        plain("file"),
        plain("line"),
        plain("step"),
    ],
    draw: on_thread::<3>,
};

const CATEGORIES: [&str; 4] = ["span", "checkpoint", "pause", "copy"];

/// Draws a slice on a thread, from a source whose own columns begin with the thread and the name.
fn on_thread<const CATEGORY: usize>(
    drawing: &mut TimelineDrawing<'_>,
    row: &ExportRow<'_>,
    columns: &[ExportColumn],
) -> Result<()> {
    let Some(process) = drawing.process(row) else { return Ok(()) };
    let thread = TrackKey::Thread(row.int(OWN).unwrap_or_default());
    let name = row.text(OWN + 1).unwrap_or_default();
    drawing.slice(process, thread, row, (CATEGORIES[CATEGORY], name), &row.arguments(columns), &[]).map(drop)
}

pub(super) const BATCHES: DrawnTable = DrawnTable {
    table: "python.data_trace",
    whose: RowOwner::Process,
    within: StepSelection::Step,
    duration: "wait",
    order: "",
    columns: &[
        hidden("thread"),
        plain("queue_depth"),
        plain("dataset"),
        plain("batch_index"),
        plain("num_workers"),
        plain("worker"),
        plain("fetch_time"),
        plain("samples"),
        plain("bytes"),
        plain("padding"),
        plain("step"),
    ],
    draw: batch,
};

fn batch(drawing: &mut TimelineDrawing<'_>, row: &ExportRow<'_>, columns: &[ExportColumn]) -> Result<()> {
    let Some(process) = drawing.process(row) else { return Ok(()) };
    let thread = TrackKey::Thread(row.int(OWN).unwrap_or_default());
    drawing.slice(process, thread, row, ("data", "next batch"), &row.arguments(columns), &[])?;
    let ready = row.int(OWN + 1).map(|batches| batches as f64);
    drawing.count(process, row, ("data queue", "batches"), ready)
}

pub(super) const SYNC_POINTS: DrawnTable = DrawnTable {
    table: "python.sync_points",
    whose: RowOwner::Process,
    within: StepSelection::Step,
    duration: "NULL",
    order: "",
    columns: &[
        hidden("thread"),
        plain("operation"),
        plain("device"),
        plain("count"),
        plain("waited"),
        plain("file"),
        plain("line"),
        plain("step"),
    ],
    draw: sync_point,
};

fn sync_point(drawing: &mut TimelineDrawing<'_>, row: &ExportRow<'_>, columns: &[ExportColumn]) -> Result<()> {
    let Some(process) = drawing.process(row) else { return Ok(()) };
    let thread = TrackKey::Thread(row.int(OWN).unwrap_or_default());
    let name = format!("waits for a device: {}", row.text(OWN + 1).unwrap_or_default());
    drawing.instant(process, thread, row, ("sync", &name), &row.arguments(columns))
}

pub(super) const COLLECTIVES: DrawnTable = DrawnTable {
    table: "python.nccl_trace",
    whose: RowOwner::Process,
    within: StepSelection::Step,
    duration: "duration_ms / 1000",
    order: ", seq",
    columns: &[
        named("group_name", "group"),
        plain("seq"),
        plain("group_size"),
        hidden("operation_type"),
        plain("bytes"),
        plain("dtype"),
        plain("async_op"),
        plain("backend"),
        plain("status"),
        named("algbw_gbps", "algbw (GB/s)"),
        named("busbw_gbps", "busbw (GB/s)"),
        plain("step"),
    ],
    draw: collective,
};

fn collective(drawing: &mut TimelineDrawing<'_>, row: &ExportRow<'_>, columns: &[ExportColumn]) -> Result<()> {
    let Some(process) = drawing.process(row) else { return Ok(()) };
    let group = row.text(OWN).unwrap_or_default();
    let operation = row.text(OWN + 3).unwrap_or_default();
    let (track, arguments) = (TrackKey::Collectives(group.to_owned()), row.arguments(columns));
    if row.duration().is_none() {
        // The end of the collective is not known.
        let name = format!("{operation} issued");
        return drawing.instant(process, track, row, ("collective", &name), &arguments);
    }
    let id = number((group, row.int(OWN + 1), operation));
    let flows: [Flow; 1] = [drawing.links.collective(id)];
    let drawn = drawing.slice(process, track, row, ("collective", operation), &arguments, &flows)?;
    if let Some(at) = drawn {
        drawing.links.add_part(id, row.int(OWN + 2).unwrap_or_default(), at);
    }
    Ok(())
}

pub(super) const EXCEPTIONS: DrawnTable = DrawnTable {
    table: "python.exceptions",
    whose: RowOwner::Process,
    within: StepSelection::Time,
    duration: "NULL",
    order: "",
    columns: &[
        hidden("thread"),
        hidden("exception"),
        plain("message"),
        plain("module"),
        plain("stage"),
        plain("file"),
        plain("line"),
        plain("uncaught"),
    ],
    draw: exception,
};

fn exception(drawing: &mut TimelineDrawing<'_>, row: &ExportRow<'_>, columns: &[ExportColumn]) -> Result<()> {
    let Some(process) = drawing.process(row) else { return Ok(()) };
    let thread = TrackKey::Thread(row.int(OWN).unwrap_or_default());
    let name = row.text(OWN + 1).unwrap_or_default();
    drawing.instant(process, thread, row, ("exception", name), &row.arguments(columns))
}

pub(super) const EVENTS: DrawnTable = DrawnTable {
    table: "probe.events",
    whose: RowOwner::Run,
    within: StepSelection::Time,
    duration: "NULL",
    order: ", id",
    columns: &[plain("kind"), plain("severity"), plain("message"), plain("details"), plain("step")],
    draw: event,
};

fn event(drawing: &mut TimelineDrawing<'_>, row: &ExportRow<'_>, columns: &[ExportColumn]) -> Result<()> {
    let process = match drawing.process(row) {
        Some(process) => process,
        None => drawing.entry_without_process("", "run")?,
    };
    let name = row.text(OWN).unwrap_or_default();
    drawing.instant(process, TrackKey::Events, row, ("event", name), &row.arguments(columns))
}
