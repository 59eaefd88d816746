//! One node of an execution trace, in either of its schemas.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::number::integer;
use crate::records::{ExecutionNode, UNKNOWN};
use crate::text_table::TextTable;

/// Longest text of shapes and types that is kept (bytes).
const MAX_TEXT: usize = 64 << 10;

/// The fields of a node. The flat schema has all of them at its top level, Chakra's most in `attrs`.
#[derive(Debug, Deserialize)]
pub(super) struct GraphNode<'a> {
    pub id: i64,
    #[serde(borrow)]
    pub name: Cow<'a, str>,
    #[serde(borrow, default)]
    parent: Option<&'a RawValue>,
    #[serde(borrow, default)]
    ctrl_deps: Option<&'a RawValue>,
    #[serde(borrow, default)]
    inputs: Option<&'a RawValue>,
    #[serde(borrow, default)]
    outputs: Option<&'a RawValue>,
    #[serde(borrow, default)]
    input_shapes: Option<&'a RawValue>,
    #[serde(borrow, default)]
    input_types: Option<&'a RawValue>,
    #[serde(borrow, default)]
    output_shapes: Option<&'a RawValue>,
    #[serde(borrow, default)]
    output_types: Option<&'a RawValue>,
    #[serde(borrow, default)]
    rf_id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    fw_parent: Option<&'a RawValue>,
    #[serde(borrow, default)]
    seq_id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    tid: Option<&'a RawValue>,
    #[serde(borrow, default)]
    op_schema: Option<&'a RawValue>,
    #[serde(borrow, default)]
    attrs: Vec<NodeAttribute<'a>>,
}

#[derive(Debug, Deserialize)]
struct NodeAttribute<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow, default)]
    value: Option<&'a RawValue>,
}

/// Inputs or outputs in Chakra's schema.
#[derive(Debug, Default, Deserialize)]
struct NodeTensors<'a> {
    #[serde(borrow, default)]
    values: Option<&'a RawValue>,
    #[serde(borrow, default)]
    shapes: Option<&'a RawValue>,
    #[serde(borrow, default)]
    types: Option<&'a RawValue>,
}

impl<'a> NodeTensors<'a> {
    fn of(raw: Option<&'a RawValue>) -> Self {
        raw.filter(|raw| raw.get().starts_with('{'))
            .and_then(|raw| serde_json::from_str(raw.get()).ok())
            .unwrap_or_default()
    }
}

/// Whether a node of this name stands for a process or thread, and is no call.
pub(super) fn is_root(name: &str) -> bool {
    name.starts_with("[pytorch|profiler|execution_") && (name.ends_with("|process]") || name.ends_with("|thread]"))
}

impl<'a> GraphNode<'a> {
    /// Parses a node's JSON.
    pub(super) fn parse(text: &'a str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    pub(super) fn is_root(&self) -> bool {
        is_root(&self.name)
    }

    fn value(&self, flat: Option<&'a RawValue>, name: &str) -> Option<&'a str> {
        let attribute = || self.attrs.iter().find(|attribute| attribute.name == name)?.value;
        flat.or_else(attribute).map(RawValue::get)
    }

    /// The first input, where it is text.
    pub(super) fn first_input(&self) -> Option<String> {
        let values = NodeTensors::of(self.inputs).values.or(self.inputs)?;
        let values: Vec<&RawValue> = serde_json::from_str(values.get()).ok()?;
        serde_json::from_str(values.first()?.get()).ok()
    }

    /// The node as a record.
    pub(super) fn record(&self, texts: &mut TextTable) -> ExecutionNode {
        let number = |flat, name| self.value(flat, name).and_then(integer);
        let schema = self.value(self.op_schema, "op_schema").and_then(|raw| serde_json::from_str::<String>(raw).ok());
        let schema = schema.filter(|schema| !schema.is_empty());
        let (inputs, outputs) = (NodeTensors::of(self.inputs), NodeTensors::of(self.outputs));
        let mut list = |flat: Option<&RawValue>, other: Option<&RawValue>| {
            let raw = flat.or(other).map(RawValue::get);
            texts.optional(raw.filter(|raw| !matches!(*raw, "[]" | "null") && raw.len() <= MAX_TEXT))
        };
        let lists = [
            list(self.input_shapes, inputs.shapes),
            list(self.input_types, inputs.types),
            list(self.output_shapes, outputs.shapes),
            list(self.output_types, outputs.types),
        ];
        let [input_shapes, input_types, output_shapes, output_types] = lists;
        ExecutionNode {
            id: self.id,
            parent: number(self.parent.or(self.ctrl_deps), "parent").unwrap_or(UNKNOWN),
            name: texts.number(&self.name),
            record_function: number(self.rf_id, "rf_id").filter(|id| *id > 0).unwrap_or(UNKNOWN),
            forward: number(self.fw_parent, "fw_parent").filter(|id| *id > 0).unwrap_or(UNKNOWN),
            sequence: number(self.seq_id, "seq_id").filter(|id| *id >= 0).unwrap_or(UNKNOWN),
            thread: number(self.tid, "tid").unwrap_or(UNKNOWN),
            is_operator: u8::from(schema.is_some()),
            schema: texts.optional(schema.as_deref()),
            input_shapes,
            input_types,
            output_shapes,
            output_types,
        }
    }
}
