//! Parses the name of a Python frame: file, line, function, and whether it belongs to the program itself.

/// A frame by its name: `train.py(40): main`, `<built-in method …>`, `nn.Module: Linear_0`.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct PythonFrame {
    pub file: Option<String>,
    pub line: Option<i32>,
    pub function: String,
    /// Whether the frame is the call of a module.
    pub is_module: bool,
    /// Whether the file's directory is missing, so that it is unknown whether the file is the program's.
    pub is_bare: bool,
}

/// Parts of the file names of other packages and Python itself.
const OTHERS: &[&str] = &["site-packages/", "dist-packages/", "/lib/python"];

/// What lies in torch's own directory, where that is not among the packages. A directory of a program may be called torch too.
const IN_TORCH: &[&str] = &[
    "_dynamo/",
    "_inductor/",
    "_ops.py",
    "_tensor.py",
    "autograd/",
    "distributed/",
    "nn/functional.py",
    "nn/modules/",
    "nn/parallel/",
    "optim/",
    "utils/_",
    "utils/data/",
];

impl PythonFrame {
    pub(crate) fn of(name: &str) -> Self {
        if let Some(module) = name.strip_prefix("nn.Module: ") {
            return Self { file: None, line: None, function: module.to_owned(), is_module: true, is_bare: false };
        }
        let parts = || {
            let (location, function) = name.split_once("): ")?;
            let (file, line) = location.rsplit_once('(')?;
            Some((file, line.parse().ok()?, function))
        };
        match parts() {
            Some((file, line, function)) => {
                let file = Some(file.to_owned());
                Self { file, line: Some(line), function: function.to_owned(), ..Self::default() }
            }
            None => of_xla(name).unwrap_or_else(|| Self { function: name.to_owned(), ..Self::default() }),
        }
    }

    /// Whether the frame is the program's own: neither torch's, nor another package's, nor built in.
    pub(crate) fn is_users(&self) -> bool {
        !self.is_bare && self.file.as_ref().is_some_and(|file| !is_other(&file.replace('\\', "/")))
    }

    /// The innermost frame of the program itself in a stack of 2021: frames from the innermost on, with semicolons between.
    pub(crate) fn in_call_stack(stack: &str) -> Option<Self> {
        stack.split(';').map(Self::of).find(Self::is_users)
    }
}

/// Whether a file is torch's, another package's, Python's own or none. The profiler leaves out the directory that torch was imported
/// from, so that its files begin with `torch/`.
fn is_other(file: &str) -> bool {
    let in_torch = |(at, _): (usize, &str)| IN_TORCH.iter().any(|part| file[at + "/torch/".len()..].starts_with(part));
    file.starts_with("torch/")
        || file.starts_with('<')
        || OTHERS.iter().any(|other| file.contains(other))
        || file.match_indices("/torch/").any(in_torch)
}

/// Parses a name from the tracer of TensorFlow and JAX: `$profiler.py:226 trace`, `$builtins isinstance`.
fn of_xla(name: &str) -> Option<PythonFrame> {
    let text = name.strip_prefix('$')?;
    let (location, function) = text.split_once(' ').unwrap_or(("", text));
    let (file, line) = match location.rsplit_once(':').map(|(file, line)| (file, line.parse())) {
        Some((file, Ok(line))) => (Some(file.to_owned()), Some(line)),
        _ => return Some(PythonFrame { function: text.to_owned(), ..PythonFrame::default() }),
    };
    Some(PythonFrame { file, line, function: function.to_owned(), is_module: false, is_bare: true })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_file_line_and_function() {
        let frame = PythonFrame::of("train.py(40): main");
        assert_eq!((frame.file.as_deref(), frame.line, &*frame.function), (Some("train.py"), Some(40), "main"));
        assert!(frame.is_users());
        assert!(PythonFrame::of("nn.Module: Linear_0").is_module);
        let bare = PythonFrame::of("$profiler.py:226 trace");
        assert_eq!((bare.file.as_deref(), bare.line, &*bare.function), (Some("profiler.py"), Some(226), "trace"));
        assert!(!bare.is_users(), "it may be anybody's");
        assert_eq!(PythonFrame::of("$builtins isinstance").function, "builtins isinstance");
        for other in [
            "<built-in method f>",
            "torch/nn/modules/module.py(1): _call_impl",
            "torch\\nn\\modules\\module.py(1): _call_impl",
            "/opt/pytorch/torch/optim/sgd.py(1): step",
            "/x/lib/python3.7/a.py(1): f",
            "/x/site-packages/numpy/a.py(1): f",
            "<frozen runpy>(198): _run_module_as_main",
            "f",
        ] {
            assert!(!PythonFrame::of(other).is_users(), "{other}");
        }
        for own in ["mylib/torch/model.py(5): forward", "/home/u/torch/train.py(1): main", "pytorch/a.py(1): f"] {
            assert!(PythonFrame::of(own).is_users(), "{own}");
        }
        let stack = "/x/lib/python3.7/site-packages/torch/autograd/profiler.py(611): __init__;resnet.py(54): <module>";
        assert_eq!(PythonFrame::in_call_stack(stack).and_then(|frame| frame.line), Some(54));
    }
}
