//! `python.operators`: operator calls and named ranges of captures.

use crate::table::{Text, Time};

crate::table! {
    python.operators, Agent, "One row per operator call or named range of a capture: what torch.profiler recorded on the host.";
    sort: [ts];
    examples: [
        "SELECT name, COUNT(*) AS calls, SUM(self_duration) AS own, SUM(device_self_duration) AS device FROM python.operators WHERE kind = 'operator' GROUP BY name ORDER BY own DESC LIMIT 10",
        "SELECT step, rank, module, name, duration, input_shapes FROM python.operators WHERE name = 'aten::addmm' ORDER BY duration DESC LIMIT 10",
    ];
    capture: Text, "", "Name of the capture, as in python.captures.";
    step: Option<i64>, "", "Number of the ProfilerStep that it began in; NULL outside all of them.";
    ts: Time, "", "When it began. From 1970 on where python.captures.clock is unix, else from an instant that is not known.";
    duration: f64, "s", "How long it took on the host.";
    self_duration: f64, "s", "duration without the operators, ranges and runtime calls directly within it.";
    device_duration: Option<f64>, "s", "Sum of the device activities launched within it; NULL where the capture has none at all.";
    device_self_duration: Option<f64>, "s", "Sum of those that no operator or range within it launched.";
    kind: Text, "", "operator (cpu_op), or annotation (user_annotation): ProfilerStep#N, Optimizer.step, DataLoader, record_function.";
    stage: Option<Text>, "", "backward (within an autograd node), step (within Optimizer.step) or forward (within a module); NULL where none of these is known.";
    module: Option<Text>, "", "Module that it belongs to, with probe capture by its qualified name, as in python.torch_trace; in an imported trace by nn.Module frames: class names with the number of the instance, outermost first. Backward work has that of its forward operator. NULL where neither is recorded.";
    name: Text, "", "aten::addmm, ProfilerStep#7.";
    depth: i32, "", "Operators and ranges that were open around it on its thread.";
    parent: Option<Text>, "", "Name of the innermost of them.";
    input_shapes: Option<Text>, "", "Shapes of its inputs in JSON; NULL where shapes were not recorded.";
    input_types: Option<Text>, "", "Types of its inputs in JSON.";
    input_bytes: Option<i64>, "B", "Bytes of the tensors that go in, by their shapes and types; NULL where one of these is missing.";
    flops: Option<f64>, "FLOP", "Floating-point operations: where the capture says, else of matrix products (mm, addmm, bmm, baddbmm) and conv2d by torch.profiler's formulas, where it has shapes.";
    file: Option<Text>, "", "File of the innermost Python frame around it that is neither torch's nor built in.";
    line: Option<i32>, "", "Line of that frame.";
    stack: Option<i64>, "", "Innermost Python frame around it: python.frames.id of the same capture.";
    thread: i64, "", "Thread, as the capture numbers it.";
    sequence: Option<i64>, "", "Number that a forward operator shares with its autograd node.";
    external_id: Option<i64>, "", "External id of the capture.";
    record_function: Option<i64>, "", "Number of its record function, which an execution trace of the same steps shares (python.execution_trace); NULL where the capture does not say.";
    collective: Option<Text>, "", "Of a collective (record_param_comms), what the capture says of it, in JSON: name, process group, ranks, number, elements and type.";
}
