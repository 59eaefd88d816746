//! Tables of captures: operators, Python frames, launches and what ran on devices, in the names that torch.profiler gives them,
//! so that its readers know them.

use std::io::Result;

use probe_export::{Flow, FlowKind};
use probe_proto::stage::Stage;
use serde_json::{Map, Value};

use super::source::{DrawnTable, RowOwner, StepSelection};
use crate::export::drawing::{TimelineDrawing, TrackKey};
use crate::export::pending_flows::number;
use crate::export::row::{CAPTURE, ExportColumn, ExportRow, OWN, hidden, json, named, plain};

pub(super) const OPERATORS: DrawnTable = DrawnTable {
    table: "python.operators",
    whose: RowOwner::Capture,
    within: StepSelection::StepOrTime,
    duration: "duration",
    order: ", depth",
    columns: &[
        hidden("thread"),
        hidden("name"),
        hidden("kind"),
        plain("stage"),
        named("sequence", "Sequence number"),
        plain("module"),
        named("external_id", "External id"),
        json("input_shapes", "Input Dims"),
        json("input_types", "Input type"),
        plain("flops"),
        plain("file"),
        plain("line"),
        plain("step"),
        hidden("collective"),
    ],
    draw: operator,
};

fn operator(drawing: &mut TimelineDrawing<'_>, row: &ExportRow<'_>, columns: &[ExportColumn]) -> Result<()> {
    let Some(process) = drawing.process(row) else { return Ok(()) };
    let (thread, name) = (row.int(OWN).unwrap_or_default(), row.text(OWN + 1).unwrap_or_default());
    let is_operator = row.text(OWN + 2) == Some("operator");
    let is_backward = row.text(OWN + 3) == Some(Stage::Backward.as_str());
    let sequence = row.int(OWN + 4).filter(|_| is_operator);
    let (mut flow, mut forward) = (None, None);
    match sequence {
        Some(sequence) if is_backward => flow = drawing.links.backward(process, sequence),
        Some(sequence) => {
            let id = drawing.links.new_id();
            (flow, forward) = (Some(Flow::Possible(id)), Some((sequence, id)));
        }
        None => {}
    }
    let category = if is_operator { "cpu_op" } else { "user_annotation" };
    // Readers look for the description of a collective among the values of the operator.
    let collective = row.text(OWN + 13).and_then(|text| serde_json::from_str::<Map<String, Value>>(text).ok());
    let (track, mut arguments) = (TrackKey::Captured(thread), row.arguments(columns));
    arguments.extend(collective.iter().flatten().filter_map(|(key, value)| {
        let text = |text| (key.as_str(), probe_export::ArgumentValue::Text(text));
        value.as_str().map(text).or_else(|| Some((key.as_str(), probe_export::ArgumentValue::Int(value.as_i64()?))))
    }));
    let drawn = drawing.slice(process, track, row, (category, name), &arguments, flow.as_slice())?;
    if let (Some(at), Some((sequence, id))) = (drawn, forward) {
        drawing.links.forward(process, sequence, thread, id, at);
    }
    Ok(())
}

pub(super) const FRAMES: DrawnTable = DrawnTable {
    table: "python.frames",
    whose: RowOwner::Capture,
    within: StepSelection::StepOrTime,
    duration: "duration",
    order: ", depth",
    columns: &[
        hidden("thread"),
        hidden("function"),
        hidden("file"),
        hidden("line"),
        plain("module"),
        named("id", "Python id"),
        named("parent", "Python parent id"),
        plain("step"),
    ],
    draw: frame,
};

fn frame(drawing: &mut TimelineDrawing<'_>, row: &ExportRow<'_>, columns: &[ExportColumn]) -> Result<()> {
    let Some(process) = drawing.process(row) else { return Ok(()) };
    let thread = TrackKey::Captured(row.int(OWN).unwrap_or_default());
    let function = row.text(OWN + 1).unwrap_or_default();
    let name = match (row.text(OWN + 4), row.text(OWN + 2)) {
        (Some(_), _) => format!("nn.Module: {function}"),
        (None, Some(file)) => format!("{file}({}): {function}", row.int(OWN + 3).unwrap_or_default()),
        (None, None) => function.to_owned(),
    };
    drawing.slice(process, thread, row, ("python_function", &name), &row.arguments(columns), &[]).map(drop)
}

pub(super) const LAUNCHES: DrawnTable = DrawnTable {
    table: "gpu.launches",
    whose: RowOwner::Capture,
    within: StepSelection::StepOrTime,
    duration: "duration",
    order: "",
    columns: &[
        hidden("thread"),
        hidden("name"),
        named("correlation", "correlation"),
        hidden("kernels"),
        named("external_id", "External id"),
        plain("operator"),
        plain("module"),
        plain("step"),
    ],
    draw: launch,
};

/// The id of the arrow from a launch to the activity that it launched.
fn launched(process: usize, row: &ExportRow<'_>, correlation: Option<i64>) -> Option<u64> {
    correlation.map(|correlation| number((process, row.text(CAPTURE), correlation)))
}

fn launch(drawing: &mut TimelineDrawing<'_>, row: &ExportRow<'_>, columns: &[ExportColumn]) -> Result<()> {
    let Some(process) = drawing.process(row) else { return Ok(()) };
    let (thread, name) = (row.int(OWN).unwrap_or_default(), row.text(OWN + 1).unwrap_or_default());
    // cuLaunchKernel is the driver's, cudaLaunchKernel the runtime's.
    let is_driver = name.strip_prefix("cu").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_uppercase()));
    let category = if is_driver { "cuda_driver" } else { "cuda_runtime" };
    let starts = row.int(OWN + 3).is_some_and(|kernels| kernels > 0);
    let flow = launched(process, row, row.int(OWN + 2)).filter(|_| starts);
    let flow = flow.map(|id| Flow::Begin(FlowKind::Launch, id));
    let (track, arguments) = (TrackKey::Captured(thread), row.arguments(columns));
    drawing.slice(process, track, row, (category, name), &arguments, flow.as_slice()).map(drop)
}

pub(super) const KERNELS: DrawnTable = DrawnTable {
    table: "gpu.kernels",
    whose: RowOwner::Capture,
    within: StepSelection::StepOrTime,
    duration: "duration",
    order: "",
    columns: &[
        hidden("name"),
        hidden("kind"),
        plain("device"),
        plain("stream"),
        named("correlation", "correlation"),
        hidden("launch_kernels"),
        named("external_id", "External id"),
        plain("category"),
        plain("operator"),
        plain("module"),
        named("launch_delay", "launch delay (s)"),
        json("grid", "grid"),
        json("block", "block"),
        named("registers", "registers per thread"),
        named("shared_memory", "shared memory"),
        named("blocks_per_sm", "blocks per SM"),
        named("warps_per_sm", "warps per SM"),
        named("occupancy", "est. achieved occupancy %"),
        plain("bytes"),
        named("bandwidth", "memory bandwidth (GB/s)"),
        named("collective", "Collective name"),
        named("group_name", "Process Group Name"),
        named("ranks", "Process Group Ranks"),
        named("group_size", "Group size"),
        named("seq", "Seq"),
        plain("dtype"),
        plain("elements"),
        plain("step"),
    ],
    draw: kernel,
};

fn kernel(drawing: &mut TimelineDrawing<'_>, row: &ExportRow<'_>, columns: &[ExportColumn]) -> Result<()> {
    let Some(process) = drawing.process(row) else { return Ok(()) };
    let (name, kind) = (row.text(OWN).unwrap_or_default(), row.text(OWN + 1).unwrap_or_default());
    let category = match kind {
        "memcpy" => "gpu_memcpy",
        "memset" => "gpu_memset",
        "sync" => "cuda_sync",
        _ => "kernel",
    };
    let track = TrackKey::Stream { device: row.int(OWN + 2), stream: row.int(OWN + 3), waits: kind == "sync" };
    let mut flows = Vec::new();
    // An activity without a launch in the capture has no number of activities that share the launch.
    if let (Some(id), Some(together)) = (launched(process, row, row.int(OWN + 4)), row.int(OWN + 5)) {
        let kind = FlowKind::Launch;
        flows.push(if together == 1 { Flow::End(kind, id) } else { Flow::Through(kind, id) });
    }
    let collective = match (row.text(OWN + 20), row.text(OWN + 21), row.int(OWN + 24)) {
        (Some(collective), Some(group), Some(seq)) => Some(number((collective, group, seq))),
        _ => None,
    };
    flows.extend(collective.map(|id| drawing.links.collective(id)));
    let drawn = drawing.slice(process, track, row, (category, name), &row.arguments(columns), &flows)?;
    if let (Some(id), Some(at)) = (collective, drawn) {
        drawing.links.add_part(id, row.int(OWN + 23).unwrap_or_default(), at);
    }
    Ok(())
}
