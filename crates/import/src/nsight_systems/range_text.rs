//! The text of an NVTX range, as `torch.autograd.profiler.emit_nvtx` writes it around operators:
//! `aten::addmm, op_id = 12, sizes = [[2, 3], []], seq = 4`.

/// The parsed text of a range.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RangeText<'a> {
    /// The whole text, or the operator's name.
    pub name: &'a str,
    /// Whether torch put the range around an operator.
    pub is_operator: bool,
    pub op_id: Option<i64>,
    pub sequence: Option<i64>,
    /// Sizes of the inputs, in brackets.
    pub sizes: Option<&'a str>,
}

/// Keys that torch writes after a name.
const KEYS: [&str; 4] = ["op_id", "seq", "sizes", "input_op_ids"];

impl<'a> RangeText<'a> {
    /// Parses a text.
    pub(crate) fn of(text: &'a str) -> Self {
        let first = |key: &str| text.find(&format!(", {key} = "));
        let end = KEYS.iter().filter_map(|key| first(key)).min().unwrap_or(text.len());
        let value = |key: &str| {
            let begin = first(key)? + key.len() + 5;
            let next = KEYS.iter().filter_map(|key| text[begin..].find(&format!(", {key} = "))).min();
            Some(text[begin..begin + next.unwrap_or(text.len() - begin)].trim())
        };
        let number = |key: &str| value(key).and_then(|value| value.parse().ok());
        let (op_id, sequence) = (number("op_id"), number("seq"));
        if end == 0 || op_id.is_none() && sequence.is_none() {
            return Self { name: text, is_operator: false, op_id: None, sequence: None, sizes: None };
        }
        Self { name: &text[..end], is_operator: true, op_id, sequence, sizes: value("sizes") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_of_emit_nvtx_are_told_from_other_ranges() {
        let operator = RangeText::of("aten::addmm, op_id = 12, sizes = [[2, 3], []], input_op_ids = [(1,0)]");
        let expected = RangeText {
            name: "aten::addmm",
            is_operator: true,
            op_id: Some(12),
            sequence: None,
            sizes: Some("[[2, 3], []]"),
        };
        assert_eq!(operator, expected);
        let older = RangeText::of("AddmmBackward0, seq = 7");
        assert_eq!((older.name, older.sequence, older.is_operator), ("AddmmBackward0", Some(7), true));
        let both = RangeText::of("aten::mul, seq = 40, op_id = 41");
        assert_eq!((both.name, both.sequence, both.op_id), ("aten::mul", Some(40), Some(41)));
        for other in ["iteration 12", "", ", op_id = 3", "a, op_id = x", "MPI_Send", "layer, sizes = [1]"] {
            let other = RangeText::of(other);
            assert!(!other.is_operator && other.op_id.is_none(), "{other:?}");
        }
    }
}
