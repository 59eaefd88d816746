//! The size of an operator's input tensors, by their shapes and types in JSON.

use serde_json::Value;

use super::kinds::dtype_bytes;

/// Bytes of all tensors; None where the size of one is not known: a list of tensors, or an unknown type.
pub(crate) fn tensor_bytes(shapes: &str, types: &str) -> Option<i64> {
    let shapes: Vec<Value> = serde_json::from_str(shapes).ok()?;
    let types: Vec<String> = serde_json::from_str(types).ok()?;
    if shapes.len() != types.len() {
        return None;
    }
    let mut sum = 0_i64;
    for (shape, kind) in shapes.iter().zip(&types) {
        let shape = shape.as_array()?;
        // Numbers and what is not given have no shape, and go in by value.
        if shape.is_empty() && (kind.is_empty() || kind.starts_with("Scalar")) {
            continue;
        }
        let kind = kind.trim_start_matches("c10::").trim_end_matches(" int");
        let mut bytes = dtype_bytes(kind).or(match kind {
            "unsigned char" | "signed char" => Some(1),
            _ => None,
        })?;
        for size in shape {
            bytes = bytes.checked_mul(size.as_i64().filter(|size| *size >= 0)?)?;
        }
        sum = sum.checked_add(bytes)?;
    }
    Some(sum)
}

#[cfg(test)]
mod tests {
    use super::tensor_bytes;

    #[test]
    fn tensors_of_known_types_are_added_up() {
        let bytes = |shapes: &str, types: &str| tensor_bytes(shapes, types);
        assert_eq!(bytes("[[4],[2,3],[3,4],[],[]]", r#"["float","float","float","Scalar","Scalar"]"#), Some(88));
        assert_eq!(bytes("[[2,3],[]]", r#"["c10::BFloat16",""]"#), Some(12));
        assert_eq!(bytes("[[5],[]]", r#"["long int","double"]"#), Some(48));
        for (shapes, types) in [
            ("[[[2],[3]]]", r#"["TensorList"]"#),
            ("[[2]]", r#"["c10::Unheard"]"#),
            ("[[2]]", r#"["float","float"]"#),
            ("[[-1]]", r#"["float"]"#),
            ("[[9223372036854775807,2]]", r#"["float"]"#),
            ("[2", "[]"),
        ] {
            assert_eq!(bytes(shapes, types), None, "{shapes} {types}");
        }
    }
}
