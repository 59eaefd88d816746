//! Checks the Hello, the first frame of an agent.

use std::sync::Arc;

use probe_proto::{PROTOCOL, VERSION, tables, v1};
use probe_store::{ColumnMapping, ProcessIdentity, Store};
use prost::Message;

use super::agent::AgentDescription;
use crate::truncate::{MAX_TEXT, truncate};

/// Longest name of a host, a version, an instance (bytes).
const MAX_NAME_LENGTH: usize = 256;
/// Longest command line that is kept (bytes).
const MAX_COMMAND_LENGTH: usize = 4096;
/// Tables an agent may declare, and columns of each.
const MAX_TABLES: usize = 128;
const MAX_COLUMNS: usize = 256;
/// Names and columns of all declared tables together (bytes); every connection keeps them.
const MAX_TABLES_LENGTH: usize = 256 << 10;

/// A Hello that was understood.
#[derive(Debug)]
pub(crate) struct AcceptedHello {
    pub declaration: ConnectionDeclaration,
    pub about: AgentDescription,
    pub unix_ns: i64,
    /// What of the Hello is ignored, in words; empty when nothing is.
    pub remark: String,
}

/// Whose rows a connection brings, and of which tables.
#[derive(Debug)]
pub(crate) struct ConnectionDeclaration {
    pub instance: String,
    pub identity: Arc<ProcessIdentity>,
    pub tables: Vec<DeclaredTable>,
}

/// A table that batches may be of.
#[derive(Debug)]
pub(crate) struct DeclaredTable {
    pub name: String,
    pub mapping: ColumnMapping,
    /// Why the table's rows can't be kept, in words; None where they can.
    pub refused: Option<String>,
}

/// Why an agent is not welcome.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum HelloRefusal {
    /// The agent speaks another protocol: coming back changes nothing.
    Refused(String),
    /// The Hello makes no sense.
    Malformed(String),
}

/// A Hello as the state and the journal keep it: no text is longer than what is shown of it.
pub(crate) fn truncate_hello(hello: v1::Hello) -> v1::Hello {
    v1::Hello {
        run: truncate(hello.run, MAX_NAME_LENGTH),
        host: truncate(hello.host, MAX_NAME_LENGTH),
        role: truncate(hello.role, MAX_NAME_LENGTH),
        agent_version: truncate(hello.agent_version, MAX_NAME_LENGTH),
        python_version: truncate(hello.python_version, MAX_NAME_LENGTH),
        torch_version: truncate(hello.torch_version, MAX_NAME_LENGTH),
        command: truncate(hello.command, MAX_COMMAND_LENGTH),
        ..hello
    }
}

/// Understands a Hello for a collector that keeps `run` in `store`, which takes in the tables that the program declared.
pub(crate) fn understand(hello: v1::Hello, run: &Arc<str>, store: &Store) -> Result<AcceptedHello, HelloRefusal> {
    if hello.protocol != PROTOCOL {
        let (agent, newer) = (truncate(hello.agent_version, MAX_NAME_LENGTH), hello.protocol > PROTOCOL);
        let what = if newer { "a newer probe on the collector's side" } else { "a newer probe_agent" };
        return Err(HelloRefusal::Refused(format!(
            "this agent ({agent}) speaks protocol {}, the collector ({VERSION}) protocol {PROTOCOL}; install {what}",
            hello.protocol
        )));
    }
    if hello.instance.is_empty() || hello.instance.len() > MAX_NAME_LENGTH {
        return Err(HelloRefusal::Malformed(format!("Hello.instance has {} bytes", hello.instance.len())));
    }
    if i32::try_from(hello.pid).is_err() {
        return Err(HelloRefusal::Malformed(format!("Hello.pid {} is not a process id", hello.pid)));
    }
    if hello.tables.len() > MAX_TABLES || hello.tables.iter().any(|t| t.columns.len() > MAX_COLUMNS) {
        return Err(HelloRefusal::Malformed(format!(
            "Hello declares more than {MAX_TABLES} tables or {MAX_COLUMNS} columns of one"
        )));
    }
    let declared: usize = hello.tables.iter().map(Message::encoded_len).sum();
    if declared > MAX_TABLES_LENGTH {
        return Err(HelloRefusal::Malformed(format!("Hello declares its tables in {declared} bytes")));
    }
    let mut remarks = Vec::new();
    if !hello.run.is_empty() && *hello.run != **run && run.split('@').next() != Some(hello.run.as_str()) {
        let asked = truncate(hello.run.clone(), MAX_NAME_LENGTH);
        remarks.push(format!("it says that its run is '{asked}'; this collector keeps {run}, and its rows are there"));
    }
    let mut tables = Vec::with_capacity(hello.tables.len());
    for schema in hello.tables.iter().cloned() {
        let known = tables::find(&schema.name);
        let (table, mut refused) = match known {
            None if !tables::custom::is_reserved(&schema.name) => match store.declare(&schema) {
                Ok(table) => (Some(table), None),
                Err(why) => (None, Some(truncate(why, MAX_TEXT))),
            },
            known => (known, None),
        };
        let mapping = match ColumnMapping::of(table, &schema) {
            Ok(mapping) => mapping,
            // The table is another version's; the agent's other tables are kept all the same.
            Err(error) => {
                refused = Some(truncate(format!("{error} ({VERSION})"), MAX_TEXT));
                ColumnMapping::of(None, &schema).map_err(|error| HelloRefusal::Malformed(error.to_string()))?
            }
        };
        if let Some(why) = &refused {
            remarks.push(format!("rows of {} are not kept: {why}", schema.name));
        } else if mapping.table().is_none() {
            remarks.push(format!("table {} is not known here ({VERSION})", schema.name));
        } else if !mapping.unknown_columns().is_empty() {
            let columns = mapping.unknown_columns();
            remarks.push(format!(
                "{} columns of {} are not known here and ignored: {}",
                columns.len(),
                schema.name,
                columns.join(", ")
            ));
        }
        tables.push(DeclaredTable { name: truncate(schema.name, MAX_NAME_LENGTH), mapping, refused });
    }
    let hello = v1::Hello {
        host: truncate(hello.host, MAX_NAME_LENGTH),
        role: truncate(hello.role, MAX_NAME_LENGTH),
        tables: Vec::new(),
        run: String::new(),
        ..hello
    };
    let identity = Arc::new(ProcessIdentity::of_hello(run, &hello));
    Ok(AcceptedHello {
        declaration: ConnectionDeclaration { instance: hello.instance.clone(), identity, tables },
        unix_ns: hello.unix_ns,
        remark: truncate(remarks.join("; "), MAX_TEXT),
        about: AgentDescription::of_hello(hello),
    })
}

impl AgentDescription {
    /// What a Hello says about the agent.
    pub fn of_hello(hello: v1::Hello) -> Self {
        Self {
            agent_version: truncate(hello.agent_version, MAX_NAME_LENGTH),
            python_version: truncate(hello.python_version, MAX_NAME_LENGTH),
            torch_version: truncate(hello.torch_version, MAX_NAME_LENGTH),
            command: truncate(hello.command, MAX_COMMAND_LENGTH),
            eval_over_tcp: hello.eval_over_tcp,
            attached: hello.attached,
            says_arrived: hello.says_arrived,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn hello() -> v1::Hello {
        let tables = probe_proto::tables::TABLES.iter().take(1).map(|t| t.wire_schema()).collect();
        v1::Hello { protocol: PROTOCOL, instance: "i".into(), pid: 7, tables, ..Default::default() }
    }

    fn check(change: impl FnOnce(&mut v1::Hello)) -> Result<AcceptedHello, HelloRefusal> {
        let mut hello = hello();
        change(&mut hello);
        understand(hello, &"gpt@2".into(), &Store::new(1 << 20))
    }

    #[test]
    fn another_protocol_is_refused_in_words_that_help() {
        let Err(HelloRefusal::Refused(words)) = check(|h| h.protocol = PROTOCOL + 1) else { panic!() };
        assert!(words.contains("a newer probe on the collector's side"), "{words}");
        let Err(HelloRefusal::Refused(words)) = check(|h| h.protocol = 0) else { panic!() };
        assert!(words.contains("a newer probe_agent"), "{words}");
    }

    #[test]
    fn what_makes_no_sense_is_malformed() {
        for wrong in [
            check(|h| h.instance.clear()),
            check(|h| h.instance = "x".repeat(1000)),
            check(|h| h.pid = u32::MAX),
            check(|h| h.tables = vec![h.tables[0].clone(); 129]),
            check(|h| h.tables[0].name = "x".repeat(MAX_TABLES_LENGTH)),
        ] {
            assert!(matches!(wrong, Err(HelloRefusal::Malformed(_))), "{wrong:?}");
        }
    }

    #[test]
    fn what_is_kept_of_a_hello_is_bounded() {
        let long = || "x".repeat(1 << 20);
        let kept = truncate_hello(v1::Hello { command: long(), host: long(), run: long(), role: long(), ..hello() });
        assert!(kept.encoded_len() < 3 * MAX_NAME_LENGTH + MAX_COMMAND_LENGTH + hello().encoded_len() + 100);
        assert_eq!(truncate_hello(hello()), hello());
    }

    #[test]
    fn rows_belong_to_the_collectors_run_and_another_name_is_remarked_on() {
        for same in ["", "gpt", "gpt@2"] {
            let greeting = check(|h| h.run = same.into()).unwrap();
            assert_eq!((&*greeting.declaration.identity.run, greeting.remark.as_str()), ("gpt@2", ""));
        }
        let greeting = check(|h| h.run = "bert".into()).unwrap();
        assert_eq!(&*greeting.declaration.identity.run, "gpt@2");
        assert!(greeting.remark.contains("'bert'"), "{}", greeting.remark);
    }

    #[test]
    fn unknown_tables_and_columns_are_remarked_on_and_tables_that_do_not_fit_are_refused() {
        let column = |name: &str| v1::ColumnSchema { name: name.into(), r#type: v1::ColumnType::Int64 as i32 };
        let greeting = check(|h| {
            h.tables[0].columns.push(column("novel"));
            h.tables.push(v1::TableSchema { name: "python.novel".into(), columns: vec![column("a")] });
        })
        .unwrap();
        assert!(greeting.remark.contains("novel") && greeting.remark.contains("python.novel"), "{}", greeting.remark);
        assert_eq!(greeting.declaration.tables.len(), 2);
        // A column has another type, or one that can't be NULL is missing: the table is not kept.
        let text = v1::ColumnType::Text as i32;
        for changed in [check(|h| h.tables[0].columns[0].r#type = text), check(|h| h.tables[0].columns.truncate(1))] {
            let changed = changed.unwrap();
            let table = &changed.declaration.tables[0];
            assert!(table.refused.is_some() && table.mapping.table().is_none());
            assert!(changed.remark.contains("are not kept"), "{}", changed.remark);
        }
        let twice = check(|h| h.tables[0].columns.push(column("step")));
        assert!(matches!(twice, Err(HelloRefusal::Malformed(_))), "{twice:?}");
    }
}
