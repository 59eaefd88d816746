//! Stats of an event, beside its name and time, under the names that TensorFlow, XLA and xprof give them.

use crate::number::{float, integer};

/// A stat of events that is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stat {
    Annotation,
    BytesAccessed,
    Correlation,
    Flops,
    Group,
    HloCategory,
    HloModule,
    HloOp,
    KernelDetails,
    MemcpyDetails,
    MemsetDetails,
    Occupancy,
    StepName,
    StepNumber,
    TfOp,
}

impl Stat {
    pub(crate) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "annotation" => Self::Annotation,
            "bytes_accessed" => Self::BytesAccessed,
            "correlation_id" => Self::Correlation,
            "flops" => Self::Flops,
            "group_id" => Self::Group,
            "hlo_category" => Self::HloCategory,
            "hlo_module" => Self::HloModule,
            "hlo_op" => Self::HloOp,
            "kernel_details" => Self::KernelDetails,
            "memcpy_details" => Self::MemcpyDetails,
            "memset_details" => Self::MemsetDetails,
            "theoretical_occupancy_pct" => Self::Occupancy,
            "step_name" => Self::StepName,
            "step_num" => Self::StepNumber,
            "tf_op" => Self::TfOp,
            _ => return None,
        })
    }
}

/// The value of a stat.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum StatValue<'a> {
    Integer(i64),
    Float(f64),
    Text(&'a str),
}

impl<'a> StatValue<'a> {
    fn integer(self) -> Option<i64> {
        match self {
            Self::Integer(value) => Some(value),
            Self::Float(_) => None,
            Self::Text(text) => integer(text),
        }
    }

    fn float(self) -> Option<f64> {
        match self {
            Self::Integer(value) => Some(value as f64),
            Self::Float(value) => Some(value).filter(|value| value.is_finite()),
            Self::Text(text) => float(text),
        }
    }

    fn text(self) -> Option<&'a str> {
        match self {
            Self::Text(text) => Some(text).filter(|text| !text.is_empty()),
            _ => None,
        }
    }
}

/// The stats of an event.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct EventStats<'a> {
    pub annotation: Option<&'a str>,
    pub bytes_accessed: Option<i64>,
    pub correlation: Option<i64>,
    pub flops: Option<f64>,
    pub group: Option<i64>,
    pub hlo_category: Option<&'a str>,
    pub hlo_module: Option<&'a str>,
    pub hlo_op: Option<&'a str>,
    pub kernel_details: Option<&'a str>,
    pub memcpy_details: Option<&'a str>,
    pub memset_details: Option<&'a str>,
    pub occupancy: Option<f64>,
    pub step: Option<i64>,
    pub tf_op: Option<&'a str>,
}

impl<'a> EventStats<'a> {
    pub(crate) fn add(&mut self, stat: Stat, value: StatValue<'a>) {
        match stat {
            Stat::Annotation => self.annotation = value.text(),
            Stat::BytesAccessed => self.bytes_accessed = value.integer().filter(|bytes| *bytes >= 0),
            Stat::Correlation => self.correlation = value.integer().filter(|correlation| *correlation != 0),
            Stat::Flops => self.flops = value.float().filter(|flops| *flops >= 0.0),
            Stat::Group => self.group = value.integer(),
            Stat::HloCategory => self.hlo_category = value.text(),
            Stat::HloModule => self.hlo_module = value.text(),
            Stat::HloOp => self.hlo_op = value.text(),
            Stat::KernelDetails => self.kernel_details = value.text(),
            Stat::MemcpyDetails => self.memcpy_details = value.text(),
            Stat::MemsetDetails => self.memset_details = value.text(),
            Stat::Occupancy => self.occupancy = value.float(),
            Stat::StepName | Stat::StepNumber => self.step = value.integer().or(self.step),
            Stat::TfOp => self.tf_op = value.text(),
        }
    }

    /// The operator of a device activity: that of the framework, else of the compiled program, else the innermost range that the
    /// program had open.
    pub(crate) fn operator(&self) -> Option<&'a str> {
        let of_framework = self.tf_op.map(|operator| operator.trim_end_matches(':'));
        of_framework
            .filter(|operator| !operator.is_empty() && *operator != "XlaModule" && *operator != "(null)")
            .or(self.hlo_op)
            .or_else(|| innermost(self.annotation?))
    }

    /// The collective of an operation, by its category or name: `all-reduce` of `all-reduce-start.3`.
    pub(crate) fn collective(&self, name: &str) -> Option<&'static str> {
        const COLLECTIVES: [&str; 7] = [
            "all-reduce",
            "all-gather",
            "reduce-scatter",
            "ragged-all-to-all",
            "all-to-all",
            "collective-permute",
            "collective-broadcast",
        ];
        let collective_of = |text: &str| COLLECTIVES.into_iter().find(|collective| text.starts_with(collective));
        self.hlo_category
            .and_then(collective_of)
            .or_else(|| self.hlo_op.and_then(collective_of))
            .or_else(|| collective_of(name))
    }
}

/// The name of the innermost of ranges that are written `outer#with=this#::inner#and=that#`.
fn innermost(annotation: &str) -> Option<&str> {
    annotation.rsplit("::").map(|range| range.split('#').next().unwrap_or("")).find(|range| !range.is_empty())
}

/// The parsed `kernel_details` of a kernel.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct KernelDetails {
    /// The grid as `[x,y,z]`.
    pub grid: Option<String>,
    pub block: Option<String>,
    pub registers: Option<i64>,
    pub shared_memory: Option<i64>,
    pub occupancy: Option<f64>,
}

/// Most registers of a thread; AMD's driver sometimes reports addresses as the number.
const MAX_REGISTERS: i64 = 1024;

impl KernelDetails {
    /// Parses `regs:38 static_shared:0 dynamic_shared:0 grid:160,1,1 block:1024,1,1 occ_pct:50`; older versions have `shm:0`.
    pub(crate) fn of(text: &str) -> Self {
        let mut details = Self::default();
        for (key, value) in words(text) {
            let number = || integer(value).filter(|value| *value >= 0);
            match key {
                "regs" => details.registers = number().filter(|registers| (1..=MAX_REGISTERS).contains(registers)),
                "shm" | "static_shared" | "dynamic_shared" => {
                    let sum = number().and_then(|bytes| bytes.checked_add(details.shared_memory.unwrap_or(0)));
                    details.shared_memory = sum.or(details.shared_memory);
                }
                "grid" => details.grid = list(value),
                "block" => details.block = list(value),
                // A running kernel has at least one.
                "occ_pct" => details.occupancy = float(value).filter(|occupancy| *occupancy > 0.0),
                _ => {}
            }
        }
        details
    }
}

/// The bytes in `kind:Unknown size:655360 dest:2 async:1`, as the details of copies and sets have them.
pub(crate) fn bytes_in_details(details: &str) -> Option<i64> {
    let number = |name: &str| words(details).find(|(key, _)| *key == name).and_then(|(_, value)| integer(value));
    number("size").or_else(|| number("num_bytes")).filter(|bytes| *bytes >= 0)
}

fn words(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.split([' ', '\n']).filter_map(|word| word.split_once(':'))
}

/// Three numbers in brackets.
fn list(value: &str) -> Option<String> {
    let numbers: Vec<u32> = value.split(',').map(|number| number.parse().ok()).collect::<Option<_>>()?;
    let [x, y, z] = numbers[..] else { return None };
    Some(format!("[{x},{y},{z}]"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn details_of_kernels_and_copies_of_all_years() {
        let older = KernelDetails::of("regs:38 shm:1024 grid:160,1,1 block:1024,1,1");
        let expected = KernelDetails {
            grid: Some("[160,1,1]".into()),
            block: Some("[1024,1,1]".into()),
            registers: Some(38),
            shared_memory: Some(1024),
            occupancy: None,
        };
        assert_eq!(older, expected);
        let newer = KernelDetails::of(
            "regs:2191500840 static_shared:32 dynamic_shared:64 grid:1,210453397508,0 block:8,4 occ_pct:50",
        );
        let expected = KernelDetails { shared_memory: Some(96), occupancy: Some(50.0), ..KernelDetails::default() };
        assert_eq!(newer, expected, "what can't be is not known");
        assert_eq!(bytes_in_details("kind:Unknown size:655360 dest:2 async:1"), Some(655_360));
        assert_eq!(bytes_in_details("kind:Unknown dest:2"), None);
    }

    #[test]
    fn an_operator_is_the_framework_s_or_the_compiler_s_or_the_innermost_range() {
        let operator =
            |tf_op, hlo_op, annotation| EventStats { tf_op, hlo_op, annotation, ..EventStats::default() }.operator();
        assert_eq!(operator(Some("jit(f)/dot_general:"), Some("dot.1"), None), Some("jit(f)/dot_general"));
        assert_eq!(operator(Some("XlaModule:"), Some("dot.1"), None), Some("dot.1"));
        let annotation = "RemoteCall:RemoteCall#shape=(string[];int64[])#::#edge_name=arg_1#";
        assert_eq!(operator(None, None, Some(annotation)), Some("RemoteCall:RemoteCall"));
        assert_eq!(operator(Some("(null)"), None, Some("::#a#")), None);
        let collective =
            |category, name: &str| EventStats { hlo_category: category, ..EventStats::default() }.collective(name);
        assert_eq!(collective(Some("all-reduce"), "fusion.3"), Some("all-reduce"));
        assert_eq!(collective(None, "all-gather-start.3"), Some("all-gather"));
        assert_eq!(collective(Some("copy-start"), "copy-start"), None);
    }
}
