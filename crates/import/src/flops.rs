//! Floating-point operations of an operator, from the shapes of its inputs: torch.profiler computes them (`with_flops`), and does
//! not write them into its traces.

use serde_json::Value;

/// The operations of a matrix product or a convolution, by the formulas of torch.profiler: a multiplication and an addition for
/// each pair of numbers. None for other operators, and where the inputs do not say. `inputs` are the values of inputs that are
/// no tensors, as the trace has them ("Concrete Inputs"): a convolution needs its stride, padding, dilation and groups.
pub(crate) fn flops(operator: &str, shapes: &str, inputs: Option<&str>) -> Option<f64> {
    let (left, right) = match operator {
        "aten::mm" | "aten::bmm" => (0, 1),
        "aten::addmm" | "aten::baddbmm" => (1, 2),
        "aten::conv2d" => return convolution(&parsed::<Vec<Value>>(shapes)?, &parsed::<Vec<Value>>(inputs?)?),
        _ => return None,
    };
    let shapes: Vec<Value> = parsed(shapes)?;
    let (left, right) = (sizes(shapes.get(left)?)?, sizes(shapes.get(right)?)?);
    match (left.as_slice(), right.as_slice()) {
        ([rows, inner], [same, columns]) if inner == same => Some(2.0 * rows * inner * columns),
        ([batch, rows, inner], [other, same, columns]) if inner == same && batch == other => {
            Some(2.0 * batch * rows * inner * columns)
        }
        _ => None,
    }
}

fn convolution(shapes: &[Value], inputs: &[Value]) -> Option<f64> {
    let (given, weight) = (sizes(shapes.first()?)?, sizes(shapes.get(1)?)?);
    let ([batch, channels, height, width], [made, _, rows, columns]) = (given.as_slice(), weight.as_slice()) else {
        return None;
    };
    let pair = |index: usize| -> Option<[f64; 2]> {
        let found = sizes(&parsed::<Value>(inputs.get(index)?.as_str()?)?)?;
        match found.as_slice() {
            [both] => Some([*both; 2]),
            [one, other] => Some([*one, *other]),
            _ => None,
        }
    };
    let (stride, padding, dilation) = (pair(3)?, pair(4)?, pair(5)?);
    let groups: f64 = inputs.get(6)?.as_str()?.parse().ok()?;
    let length = |axis: usize, size: f64, kernel: f64| {
        ((size + 2.0 * padding[axis] - dilation[axis] * (kernel - 1.0) - 1.0) / stride[axis]).floor() + 1.0
    };
    let result = length(0, *height, *rows) * length(1, *width, *columns);
    let flops = 2.0 * batch * result * rows * columns * channels * made / groups;
    (flops.is_finite() && flops >= 0.0).then_some(flops)
}

fn parsed<T: serde::de::DeserializeOwned>(json: &str) -> Option<T> {
    serde_json::from_str(json).ok()
}

fn sizes(shape: &Value) -> Option<Vec<f64>> {
    shape.as_array()?.iter().map(|size| size.as_f64().filter(|size| *size >= 0.0)).collect()
}

#[cfg(test)]
mod tests {
    use super::flops;

    #[test]
    fn products_and_convolutions_have_what_torch_profiler_says() {
        assert_eq!(flops("aten::mm", "[[64,32],[32,16]]", None), Some(65_536.0));
        assert_eq!(flops("aten::addmm", "[[16],[64,32],[32,16],[],[]]", None), Some(65_536.0));
        assert_eq!(flops("aten::bmm", "[[8,64,32],[8,32,16]]", None), Some(524_288.0));
        assert_eq!(flops("aten::baddbmm", "[[8,64,16],[8,64,32],[8,32,16]]", None), Some(524_288.0));
        let shapes = "[[4,8,33,17],[12,4,3,5],[12],[],[],[],[]]";
        let inputs = r#"["","","","[2, 1]","[1, 0]","[1, 2]","2"]"#;
        assert_eq!(flops("aten::conv2d", shapes, Some(inputs)), Some(881_280.0));
    }

    #[test]
    fn nothing_is_said_of_others_and_of_what_does_not_fit() {
        for (operator, shapes) in [
            ("aten::add", "[[64,32],[64,32]]"),
            ("aten::mm", "[[64,32],[16,32]]"),
            ("aten::mm", "[[64,-1],[-1,32]]"),
            ("aten::mm", "[[64,32]]"),
            ("aten::mm", "no list"),
            ("aten::bmm", "[[8,64,32],[4,32,16]]"),
            ("aten::conv2d", "[[4,8,33,17],[12,4,3,5]]"),
        ] {
            assert_eq!(flops(operator, shapes, None), None, "{operator} {shapes}");
        }
        let text = r#"["","","","[0, 0]","[1, 0]","[1, 2]","1"]"#;
        assert_eq!(flops("aten::conv2d", "[[4,8,33,17],[12,4,3,5]]", Some(text)), None, "no stride");
    }
}
