use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, Int64Array, StringArray};

use super::*;

const AT_40: Terminal = Terminal { width: Some(40), height: 24, colour: false, shape: crate::output::RowLayout::Fit };

fn draw_columns(columns: Vec<(&str, ArrayRef)>, kind: Option<ChartKind>) -> Result<String> {
    let columns = columns.into_iter().map(|(name, values)| (name, values, true));
    let batch = RecordBatch::try_from_iter_with_nullable(columns).unwrap();
    draw(&batch.schema(), &[batch], kind, AT_40)
}

fn floats(values: &[Option<f64>]) -> ArrayRef {
    Arc::new(Float64Array::from(values.to_vec()))
}

#[test]
fn a_falling_line_begins_at_the_top_left_and_ends_at_the_bottom_right() {
    let steps: ArrayRef = Arc::new(Int64Array::from_iter_values(0..100));
    let loss: Vec<Option<f64>> = (0..100).map(|step| Some(4.0 - f64::from(step) / 25.0)).collect();
    let drawn = draw_columns(vec![("step", steps), ("loss", floats(&loss))], None).unwrap();
    let lines: Vec<&str> = drawn.lines().collect();
    assert_eq!(lines[0], "loss");
    assert_eq!(lines.len(), 15, "{drawn}");
    let first = lines[1].strip_prefix(" 4.0 ┤").and_then(|line| line.chars().next());
    assert!(first.is_some_and(|cell| u32::from(cell) & 1 == 1), "the dot at the top left is set:\n{drawn}");
    assert!(lines[12].starts_with("0.04 ┤⠀"), "{drawn}");
    assert!(!lines[12].trim_end().ends_with('⠀') && lines[12].chars().count() == 39, "{drawn}");
    assert!(lines[14].contains("0 ") && lines[14].contains("step") && lines[14].ends_with("99"), "{drawn}");
    assert!(lines.iter().all(|line| line.chars().count() <= 40), "{drawn}");
}

#[test]
fn what_is_no_number_is_a_gap_and_is_counted() {
    let drawn = draw_columns(vec![("loss", floats(&[Some(1.0), None, Some(f64::NAN), Some(1.0)]))], None).unwrap();
    assert!(drawn.starts_with("loss  (2 values are NULL or not finite)\n"), "{drawn}");
    assert_eq!(drawn.chars().filter(|c| ('\u{2801}'..='\u{28ff}').contains(c)).count(), 2, "two points:\n{drawn}");
    assert!(drawn.contains("row"), "{drawn}");
    let nothing = draw_columns(vec![("loss", floats(&[None]))], None).unwrap();
    assert_eq!(nothing, "loss  (1 value is NULL or not finite)\nnothing to draw\n");
    let largest = draw_columns(vec![("x", floats(&[Some(f64::MAX), Some(f64::MIN)]))], None).unwrap();
    assert!(largest.lines().all(|line| line.chars().count() <= 40), "{largest}");
}

#[test]
fn bars_are_as_long_as_their_values() {
    let modules: ArrayRef = Arc::new(StringArray::from(vec![Some("attn"), Some("mlp"), None, Some("x")]));
    let seconds = floats(&[Some(4.0), Some(2.0), Some(0.0), None]);
    let drawn = draw_columns(vec![("module", Arc::clone(&modules)), ("seconds", seconds)], None).unwrap();
    let full = |line: &str| line.matches('█').count();
    let lines: Vec<&str> = drawn.lines().collect();
    assert_eq!(lines[0], "seconds  (1 value is NULL or not finite)");
    assert!(lines[1].starts_with("attn  4.0  █") && lines[1].chars().count() == 40, "{drawn}");
    assert_eq!((full(lines[1]), lines[2].ends_with("██▌"), full(lines[2])), (29, true, 14), "{drawn}");
    assert_eq!((lines[3], lines[4]), ("NULL  0.0", "x       –"), "{drawn}");
    let both = draw_columns(vec![("module", modules), ("d", floats(&[Some(-1.0), Some(1.0), Some(0.5), None]))], None);
    let both = both.unwrap();
    let lines: Vec<&str> = both.lines().collect();
    assert!(lines[1].trim_end().chars().count() < lines[2].chars().count(), "{both}");
    assert!(lines.iter().all(|line| line.chars().count() <= 40), "{both}");
}

#[test]
fn what_can_not_be_drawn_says_so() {
    let names: ArrayRef = Arc::new(StringArray::from(vec!["a"]));
    let error = draw_columns(vec![("module", Arc::clone(&names))], None).unwrap_err();
    assert!(error.hint_text().is_some() && error.to_string().contains("no column of numbers"), "{error}");
    let columns = vec![("module", names), ("n", floats(&[Some(1.0)]))];
    let error = draw_columns(columns, Some(ChartKind::Line)).unwrap_err();
    assert_eq!(error.hint_text(), Some(r"\plot bar draws a bar a row"));
}
