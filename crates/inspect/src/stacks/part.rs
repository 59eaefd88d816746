//! Which part of a training step a thread is in, told from the functions of torch on its stack.

use probe_proto::step_part::StepPart;
use probe_proto::v1::StackFrame;

/// The part of a step, which is never validation. The outermost function of torch decides: a module that is called within a backward
/// pass is recomputed there, and what an optimizer calls is part of its step. `frames` begin with the innermost one.
pub fn part(frames: &[StackFrame]) -> StepPart {
    frames.iter().rev().find_map(of).unwrap_or(StepPart::Other)
}

/// The part that a function begins; None if the function begins no part.
fn of(frame: &StackFrame) -> Option<StepPart> {
    let file = frame.file.as_str();
    let function = frame.function.rsplit('.').next().unwrap_or(&frame.function);
    // With the agent's hooks a module may be called without torch's own __call__ in between.
    if function == "forward" && !file.ends_with("/autograd/function.py") {
        return Some(StepPart::Forward);
    }
    let (_, file) = file.split_once("/torch/")?;
    match (file, function) {
        ("utils/data/dataloader.py", "__next__") => Some(StepPart::Data),
        ("nn/modules/module.py", "_call_impl" | "_wrapped_call_impl" | "_slow_forward") => Some(StepPart::Forward),
        ("autograd/graph.py", "_engine_run_backward") | ("autograd/__init__.py", "backward" | "grad") => {
            Some(StepPart::Backward)
        }
        ("_tensor.py", "backward") => Some(StepPart::Backward),
        ("serialization.py", "save") => Some(StepPart::Checkpoint),
        ("distributed/distributed_c10d.py" | "distributed/_functional_collectives.py", _) => Some(StepPart::Comm),
        (file, _) if file.starts_with("distributed/checkpoint/") => Some(StepPart::Checkpoint),
        // Other modules of that directory are no step of an optimizer.
        ("optim/lr_scheduler.py" | "optim/swa_utils.py", _) => Some(StepPart::Other),
        (file, function) if file.starts_with("optim/") => match function {
            "zero_grad" | "state_dict" | "load_state_dict" | "add_param_group" | "__init__" => Some(StepPart::Other),
            _ => Some(StepPart::Optimizer),
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stack of functions and files, the innermost first.
    fn stack(frames: &[(&str, &str)]) -> Vec<StackFrame> {
        let frame = |(function, file): &(&str, &str)| StackFrame {
            function: (*function).into(),
            file: if file.starts_with("torch") { format!("/v/site-packages/{file}") } else { (*file).into() },
            ..StackFrame::default()
        };
        frames.iter().map(frame).collect()
    }

    #[test]
    fn the_outermost_function_of_torch_says_the_part() {
        let module = ("<module>", "/train.py");
        for (frames, expected) in [
            (vec![("log", "/train.py")], "other"),
            (vec![("Module._call_impl", "torch/nn/modules/module.py")], "forward"),
            (vec![("linear", "/model.py"), ("Net.forward", "/model.py")], "forward"),
            (
                vec![
                    ("Net.forward", "/model.py"),
                    ("checkpoint", "torch/utils/checkpoint.py"),
                    ("_engine_run_backward", "torch/autograd/graph.py"),
                    ("Tensor.backward", "torch/_tensor.py"),
                ],
                "backward",
            ),
            (
                vec![
                    ("_single_tensor_adam", "torch/optim/adam.py"),
                    ("Optimizer.profile_hook_step.<locals>.wrapper", "torch/optim/optimizer.py"),
                ],
                "optimizer",
            ),
            (vec![("Optimizer.zero_grad", "torch/optim/optimizer.py")], "other"),
            (vec![("LRScheduler.step", "torch/optim/lr_scheduler.py")], "other"),
            (vec![("wait", "/lib/threading.py"), ("__next__", "torch/utils/data/dataloader.py")], "data"),
            // Workers start while the iterator is made, which is no wait for a batch.
            (vec![("__init__", "torch/utils/data/dataloader.py")], "other"),
            (vec![("_save", "torch/serialization.py"), ("save", "torch/serialization.py")], "checkpoint"),
            (vec![("all_reduce", "torch/distributed/distributed_c10d.py")], "comm"),
            // DDP's forward issues broadcasts: they are part of it.
            (
                vec![
                    ("broadcast", "torch/distributed/distributed_c10d.py"),
                    ("DistributedDataParallel.forward", "torch/nn/parallel/distributed.py"),
                ],
                "forward",
            ),
        ] {
            let mut frames = stack(&frames);
            frames.extend(stack(&[module]));
            assert_eq!(part(&frames).as_str(), expected, "{frames:?}");
        }
        assert_eq!(part(&[]), StepPart::Other);
    }
}
