//! The kinds of a trace's planes and lines, by the names that TensorFlow and xprof give them.

/// A plane: a device, the host, or something else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Plane {
    /// A GPU or a similar device, whose streams are lines, with its number.
    Gpu(i64),
    /// A TPU core, whose operations are one line, with its number.
    Tpu(i64),
    /// Threads of the host.
    Host,
    /// The plane with the time of the trace.
    Environment,
    Other,
}

/// A line of a plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Line {
    /// Activities on a stream of a device, with its number.
    Stream(i64),
    /// Operations of a compiled program, one after another and within one another.
    Operations(i64),
    /// Runs of compiled programs.
    Programs,
    Steps,
    Thread,
    /// A line that repeats the time of others.
    Derived,
    Other,
}

/// Names of lines that repeat the time of others, by name scope, source line or program.
const DERIVED: [&str; 9] = [
    "TensorFlow Ops",
    "TensorFlow Name Scope",
    "Framework Ops",
    "Framework Name Scope",
    "Source code",
    "Source Code",
    "Launch Stats",
    "XLA TraceMe",
    "Overlay",
];

impl Plane {
    pub(crate) fn named(name: &str) -> Self {
        let number = |rest: &str| rest.parse().ok().filter(|number: &i64| *number >= 0);
        if let Some(number) = name.strip_prefix("/device:TPU:").and_then(number) {
            return Self::Tpu(number);
        }
        if name.starts_with("/device:CUSTOM:") || name.starts_with("/device:CPU:") {
            return Self::Other;
        }
        if let Some(number) = name.strip_prefix("/device:").and_then(|rest| number(rest.rsplit_once(':')?.1)) {
            return Self::Gpu(number);
        }
        match name {
            "/host:CPU" | "/host:python-tracer" | "/host:CUPTI" | "/host:ROCTRACER" | "/host:TPU-runtime" => Self::Host,
            "Task Environment" => Self::Environment,
            _ => Self::Other,
        }
    }
}

impl Line {
    /// The kind of a line; `id` is the line's own number.
    pub(crate) fn of(plane: Plane, name: &str, id: i64) -> Self {
        match (plane, name) {
            (_, "Steps") => Self::Steps,
            (Plane::Gpu(_) | Plane::Tpu(_), "XLA Modules") => Self::Programs,
            (Plane::Tpu(_), "XLA Ops") => Self::Operations(id),
            // On a GPU they repeat the kernels of streams.
            (_, "XLA Ops") => Self::Derived,
            _ if DERIVED.contains(&name) => Self::Derived,
            (Plane::Gpu(_), _) => stream(name).map_or(Self::Other, Self::Stream),
            (Plane::Host, _) => Self::Thread,
            _ => Self::Other,
        }
    }
}

/// The stream's number in `Stream #134(Compute)`.
fn stream(name: &str) -> Option<i64> {
    let rest = name.strip_prefix("Stream #")?;
    rest[..rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len())].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn planes_and_lines_are_known_by_their_names() {
        assert_eq!(Plane::named("/device:GPU:7"), Plane::Gpu(7));
        assert_eq!(Plane::named("/device:TPU:0"), Plane::Tpu(0));
        for other in
            ["/device:TPU:0 SparseCore 1", "/host:metadata", "/device:CUSTOM:x:1", "/device:GPU:", "", "python3"]
        {
            assert_eq!(Plane::named(other), Plane::Other, "{other}");
        }
        let gpu = Plane::Gpu(0);
        assert_eq!(Line::of(gpu, "Stream #134(Compute)", 134), Line::Stream(134));
        assert_eq!(Line::of(gpu, "XLA Ops", 3), Line::Derived);
        assert_eq!(Line::of(Plane::Tpu(0), "XLA Ops", 3), Line::Operations(3));
        assert_eq!(Line::of(Plane::Tpu(0), "Async XLA Ops", 4), Line::Other);
        assert_eq!(Line::of(Plane::Host, "python3", 4), Line::Thread);
        assert_eq!(Line::of(gpu, "TensorFlow Ops", -559_038_734), Line::Derived);
    }
}
