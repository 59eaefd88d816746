//! `python.execution_trace`: operators of imported execution traces, which have no times.

use crate::table::Text;

crate::table! {
    python.execution_trace, Agent, "One row per operator call or named range of an imported execution trace of PyTorch (ExecutionTraceObserver): what called what, with which tensors. Such a trace has no times; join it to python.operators of a Kineto trace of the same steps by record_function.";
    sort: [node];
    examples: [
        "SELECT name, COUNT(*) AS calls, input_shapes FROM python.execution_trace WHERE kind = 'operator' GROUP BY name, input_shapes ORDER BY calls DESC LIMIT 10",
        "SELECT o.step, o.name, o.duration, e.input_shapes, e.input_types FROM python.operators o JOIN python.execution_trace e ON e.rank = o.rank AND e.record_function = o.record_function AND e.name = o.name ORDER BY o.duration DESC LIMIT 10",
    ];
    capture: Text, "", "The file, as python.captures calls it.";
    node: i64, "", "Its number in the trace. Calls are numbered in the order in which they began.";
    parent_node: Option<i64>, "", "Number of what called it; NULL for what is outermost on its thread.";
    parent: Option<Text>, "", "Name of what called it.";
    depth: Option<i32>, "", "How many operators and ranges are around it; NULL where a call around it is not in the file.";
    name: Text, "", "aten::addmm, Optimizer.step#SGD.step.";
    kind: Text, "", "operator (it has a schema), else annotation.";
    schema: Option<Text>, "", "Schema of the operator.";
    record_function: Option<i64>, "", "Number that it shares with python.operators.record_function of a Kineto trace of the same steps.";
    forward_node: Option<i64>, "", "Of backward work, the number of its forward operator.";
    sequence: Option<i64>, "", "Number that a forward operator shares with its autograd node.";
    thread: Option<i64>, "", "Thread, as the trace numbers it.";
    input_shapes: Option<Text>, "", "Shapes of its inputs in JSON.";
    input_types: Option<Text>, "", "Types of its inputs in JSON.";
    output_shapes: Option<Text>, "", "Shapes of its outputs in JSON.";
    output_types: Option<Text>, "", "Types of its outputs in JSON.";
}
