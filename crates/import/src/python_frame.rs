//! What the name of a Python frame says: file, line, function; and whether it is of the program itself.

/// A frame by its name: `train.py(40): main`, `<built-in method …>`, `nn.Module: Linear_0`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PythonFrame {
    pub file: Option<String>,
    pub line: Option<i32>,
    pub function: String,
    /// It is the call of a module.
    pub is_module: bool,
}

/// What torch, other packages and Python itself have in the names of their files.
const OTHERS: &[&str] = &["torch/", "site-packages/", "dist-packages/", "/lib/python", "<"];

impl PythonFrame {
    pub(crate) fn of(name: &str) -> Self {
        if let Some(module) = name.strip_prefix("nn.Module: ") {
            return Self { file: None, line: None, function: module.to_owned(), is_module: true };
        }
        let parts = || {
            let (place, function) = name.split_once("): ")?;
            let (file, line) = place.rsplit_once('(')?;
            Some((file, line.parse().ok()?, function))
        };
        match parts() {
            Some((file, line, function)) => {
                Self { file: Some(file.to_owned()), line: Some(line), function: function.to_owned(), is_module: false }
            }
            None => Self { file: None, line: None, function: name.to_owned(), is_module: false },
        }
    }

    /// Whether it is neither torch's, nor another package's, nor built in.
    pub(crate) fn is_users(&self) -> bool {
        self.file.as_ref().is_some_and(|file| {
            !OTHERS.iter().any(|other| {
                file.starts_with(other)
                    || (other.len() > 1 && file.contains(&format!("/{}", other.trim_start_matches('/'))))
            })
        })
    }

    /// The innermost frame of the program itself in a stack of 2021: frames from the innermost on, with semicolons between.
    pub(crate) fn in_call_stack(stack: &str) -> Option<Self> {
        stack.split(';').map(Self::of).find(Self::is_users)
    }
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
        for other in
            ["<built-in method f>", "torch/nn/modules/module.py(1): _call_impl", "/x/lib/python3.7/a.py(1): f", "f"]
        {
            assert!(!PythonFrame::of(other).is_users(), "{other}");
        }
        let stack = "/x/lib/python3.7/site-packages/torch/autograd/profiler.py(611): __init__;resnet.py(54): <module>";
        assert_eq!(PythonFrame::in_call_stack(stack).and_then(|frame| frame.line), Some(54));
    }
}
