//! Execution traces of PyTorch (`torch.profiler.ExecutionTraceObserver`), flat ones and those of Chakra's schema: operators in
//! the order in which they ended, with no times. They become rows once all of them are read, because a caller comes after the
//! calls that it makes.

mod node;

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::atomic::Ordering;

use probe_common::error::{Error, Result};
use probe_proto::tables::{execution_trace, process_groups};
use probe_store::row_files::RowSink;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::capture::{CaptureFacts, CaptureSource, ImportedCapture, RowCounts};
use super::collect::TEXT_REFUSED;
use super::elements::{ElementReader, JsonElement};
use super::head::FileHead;
use super::imported_process;
use super::input::TextInput;
use super::metadata::rank_in_name;
use super::records::{ExecutionNode, known};
use super::rows::ProcessRows;
use super::sorter::{RecordSorter, SortedRecords};
use super::text_table::TextTable;
use node::GraphNode;

/// The format's name in `--format` and `python.captures`.
pub(crate) const NAME: &str = "execution-trace";

/// Most nodes whose callers are remembered; further ones are counted.
const MAX_NODES: usize = 2 << 20;
/// Most calls within each other that are followed.
const MAX_DEPTH: i32 = 1024;
/// Most process groups, and the longest list of them (bytes).
const MAX_GROUPS: usize = 1 << 12;
const MAX_GROUP_TEXT: usize = 4 << 20;
/// Nodes between two reports of progress.
const REPORT: u64 = 4096;

/// Name of the node that lists the process groups.
const GROUPS: &str = "## process_group:init ##";

/// Whether a file with this beginning is an execution trace.
pub(crate) fn recognises(head: &FileHead) -> bool {
    let says = |word: &str| memchr::memmem::find(&head.bytes, word.as_bytes()).is_some();
    head.is_json() && head.has_key("nodes") && says("\"rf_id\"")
}

/// A process group, as the trace has it.
#[derive(Debug, Deserialize)]
struct ProcessGroup {
    pg_name: String,
    #[serde(default)]
    pg_desc: Option<String>,
    #[serde(default)]
    ranks: Vec<i64>,
    #[serde(default)]
    group_size: Option<i32>,
}

/// All that was read of a file.
struct ExecutionTraceFile {
    nodes: RecordSorter<ExecutionNode>,
    texts: TextTable,
    /// For each node, its caller's number and the number of its own name.
    callers: HashMap<i64, (i64, u32)>,
    groups: Vec<ProcessGroup>,
    events: u64,
    left_out: BTreeMap<Cow<'static, str>, u64>,
    problem: Option<String>,
    text_bytes: u64,
    about: Map<String, Value>,
}

/// Reads a file and writes its rows.
///
/// # Errors
/// The file is no execution trace, or rows can't be written.
pub(crate) fn import(
    reading: &CaptureSource<'_>,
    files: &mut dyn RowSink,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<ImportedCapture> {
    let input = TextInput::open(reading.path)?;
    let (file_bytes, consumed) = (input.file_bytes, input.consumed);
    let mut report = || progress(consumed.load(Ordering::Relaxed), file_bytes);
    let mut found = ExecutionTraceFile::read(input.text, reading.scratch, &mut report)?;
    if found.callers.is_empty() {
        let why = found.problem.unwrap_or_else(|| "it has no nodes".into());
        return Err(Error::failed(format!("{} has no operators to import: {why}", reading.path.display()))
            .hint("torch.profiler.ExecutionTraceObserver writes execution traces"));
    }
    let rank = reading.path.file_name().and_then(|name| rank_in_name(name.to_str()?));
    let pid = found.about.get("pid").and_then(Value::as_i64).and_then(|pid| i32::try_from(pid).ok());
    let identity = imported_process::identity(reading.run, None, pid, rank, None);
    let mut rows = ProcessRows::new(files, identity);
    let nodes = std::mem::replace(&mut found.nodes, RecordSorter::new(reading.scratch)).finish()?;
    let count = found.write_nodes(&nodes, reading.capture, &mut rows)?;
    nodes.check()?;
    found.write_groups(reading.capture, &mut rows)?;
    let schema = found.about.remove("schema").map(|schema| serde_json::json!({ "schema": schema }).to_string());
    let facts = CaptureFacts {
        tool: NAME,
        rank,
        rank_source: if rank.is_some() { "name" } else { "none" },
        file: Some(reading.path.display().to_string()),
        file_bytes,
        text_bytes: found.text_bytes,
        versions: schema,
        events: found.events,
        rows: RowCounts { nodes: count, ..RowCounts::default() },
        left_out: found.left_out,
        problem: found.problem,
        ..CaptureFacts::default()
    };
    let capture = facts.write(reading.capture, &mut rows)?;
    rows.finish()?;
    Ok(capture)
}

impl ExecutionTraceFile {
    fn read(text: impl std::io::Read, scratch: &Path, report: &mut dyn FnMut()) -> Result<Self> {
        let mut found = Self {
            nodes: RecordSorter::new(scratch),
            texts: TextTable::default(),
            callers: HashMap::new(),
            groups: Vec::new(),
            events: 0,
            left_out: BTreeMap::new(),
            problem: None,
            text_bytes: 0,
            about: Map::new(),
        };
        let mut elements = ElementReader::of_array(text, "nodes");
        loop {
            match elements.next() {
                Ok(Some(JsonElement::Event(text, _))) => {
                    found.events += 1;
                    if found.events.is_multiple_of(REPORT) {
                        report();
                    }
                    found.node(&String::from_utf8_lossy(text))?;
                }
                Ok(Some(JsonElement::Value(key @ ("schema" | "pid"), text))) => {
                    let value = serde_json::from_slice(text).unwrap_or(Value::Null);
                    if text.len() <= 64 {
                        found.about.insert(key.to_owned(), value);
                    }
                }
                Ok(Some(JsonElement::Value(..))) => {}
                Ok(None) => break,
                Err(stopped) => {
                    let (what, offset, nodes) = (stopped.what, stopped.offset, found.events);
                    found.problem = Some(format!("at byte {offset} of its text, after {nodes} nodes: {what}"));
                    break;
                }
            }
        }
        found.text_bytes = elements.offset();
        if found.texts.refused > 0 {
            found.leave_out(TEXT_REFUSED, found.texts.refused);
        }
        Ok(found)
    }

    fn leave_out(&mut self, reason: &'static str, nodes: u64) {
        *self.left_out.entry(reason.into()).or_default() += nodes;
    }

    fn node(&mut self, text: &str) -> Result<()> {
        let Some(node) = GraphNode::parse(text) else {
            self.leave_out("unreadable", 1);
            return Ok(());
        };
        if self.callers.len() >= MAX_NODES && !self.callers.contains_key(&node.id) {
            self.leave_out("past the number of nodes", 1);
            return Ok(());
        }
        if node.name == GROUPS && self.groups.is_empty() {
            self.groups = node.first_input().map_or_else(Vec::new, |text| groups(&text));
        }
        let record = node.record(&mut self.texts);
        if self.callers.insert(node.id, (record.parent, record.name)).is_some() {
            self.leave_out("number of another node", 1);
            return Ok(());
        }
        if node.is_root() {
            self.leave_out("root of a process or thread", 1);
            return Ok(());
        }
        self.nodes.push(record)
    }

    /// The caller of a node, unless that is a root.
    fn caller(&self, parent: i64) -> Option<(i64, u32)> {
        let (_, name) = self.callers.get(&parent)?;
        let is_root = self.texts.get(*name).is_some_and(|name| node::is_root(name));
        (!is_root).then_some((parent, *name))
    }

    /// The number of calls around a node; None where one of these is missing, or they are more than [`MAX_DEPTH`].
    fn depth(&self, parent: i64) -> Option<i32> {
        let (mut depth, mut at) = (0, parent);
        while self.caller(at).is_some() {
            depth += 1;
            at = self.callers.get(&at)?.0;
            if depth > MAX_DEPTH {
                return None;
            }
        }
        self.callers.contains_key(&at).then_some(depth)
    }

    fn write_nodes(
        &self,
        nodes: &SortedRecords<ExecutionNode>,
        capture: &str,
        rows: &mut ProcessRows<'_>,
    ) -> Result<i64> {
        let mut count = 0;
        for node in nodes.group(0) {
            count += 1;
            let caller = self.caller(node.parent);
            rows.push(|id| {
                let mut text = |number: u32| self.texts.get(number).map(|text| id(text));
                execution_trace::Row {
                    node: node.id,
                    parent_node: caller.map(|(parent, _)| parent),
                    parent: caller.and_then(|(_, name)| text(name)),
                    depth: self.depth(node.parent),
                    schema: text(node.schema),
                    record_function: known(node.record_function),
                    forward_node: known(node.forward),
                    sequence: known(node.sequence),
                    thread: known(node.thread),
                    input_shapes: text(node.input_shapes),
                    input_types: text(node.input_types),
                    output_shapes: text(node.output_shapes),
                    output_types: text(node.output_types),
                    name: text(node.name).unwrap_or_else(|| id("(past the limit of text)")),
                    kind: id(if node.is_operator != 0 { "operator" } else { "annotation" }),
                    capture: id(capture),
                }
            })?;
        }
        Ok(count)
    }

    fn write_groups(&self, capture: &str, rows: &mut ProcessRows<'_>) -> Result<()> {
        for group in &self.groups {
            // An empty list stands for all ranks, whose numbers are not given.
            let ranks = (!group.ranks.is_empty()).then(|| serde_json::json!(group.ranks).to_string());
            rows.push(|id| process_groups::Row {
                capture: id(capture),
                ts: None,
                group_name: id(&group.pg_name),
                description: group.pg_desc.as_deref().filter(|text| !text.is_empty()).map(&mut *id),
                number: None,
                group_size: group.group_size,
                ranks: ranks.as_deref().map(&mut *id),
                last_seq: None,
                last_enqueued: None,
                last_started: None,
                last_completed: None,
                operations: 0,
                pending: 0,
            })?;
        }
        Ok(())
    }
}

/// The process groups that a text lists.
fn groups(text: &str) -> Vec<ProcessGroup> {
    if text.len() > MAX_GROUP_TEXT {
        return Vec::new();
    }
    let mut groups: Vec<ProcessGroup> = serde_json::from_str(text).unwrap_or_default();
    groups.truncate(MAX_GROUPS);
    groups
}
