//! An open connection, as the journal's checkpoint has it.

use std::sync::Arc;

use probe_proto::v1;
use prost::Message;

/// Strings of a connection that a piece may have before the next one begins.
const MAX_PIECE: usize = 1024;

/// An open connection: the state that later records of it need. A copy shares the long parts.
#[derive(Debug, Default, Clone)]
pub(super) struct OpenConnection {
    pub(super) instance: String,
    pub(super) hello: Option<Arc<v1::Hello>>,
    /// The strings in pieces, in the order in which they came.
    pub(super) strings: Vec<Arc<Vec<String>>>,
    /// The number of the strings.
    count: usize,
}

/// Compares strings without regard to the pieces in which they came.
impl PartialEq for OpenConnection {
    fn eq(&self, other: &Self) -> bool {
        self.instance == other.instance && self.hello == other.hello && self.strings().eq(other.strings())
    }
}

impl OpenConnection {
    pub(super) fn of_message(open: v1::Connection) -> Self {
        let v1::Connection { instance, hello, strings, .. } = open;
        Self { instance, hello: hello.map(Arc::new), count: strings.len(), strings: vec![Arc::new(strings)] }
    }

    /// Adds strings, of which `known` are there already. Returns their bytes.
    pub(super) fn add(&mut self, strings: &v1::Strings) -> usize {
        let known = self.count.saturating_sub(strings.first as usize);
        let new = strings.values.iter().skip(known);
        let bytes = new.clone().map(String::len).sum();
        self.count += new.len();
        // A program may have a new text in each step. Small pieces are put together, unless a copy of this shares the last one.
        match self.strings.last_mut().filter(|last| last.len() < MAX_PIECE).and_then(Arc::get_mut) {
            Some(last) => last.extend(new.cloned()),
            None if new.len() > 0 => self.strings.push(Arc::new(new.cloned().collect())),
            None => {}
        }
        bytes
    }

    pub(super) fn to_message(&self, connection: u64) -> v1::Connection {
        v1::Connection {
            connection,
            instance: self.instance.clone(),
            hello: self.hello.as_deref().cloned(),
            strings: self.strings().cloned().collect(),
        }
    }

    fn strings(&self) -> impl Iterator<Item = &String> {
        self.strings.iter().flat_map(|strings| strings.iter())
    }

    pub(super) fn text_bytes(&self) -> usize {
        self.strings().map(String::len).sum()
    }

    pub(super) fn hello_bytes(&self) -> usize {
        self.hello.as_deref().map_or(0, Message::encoded_len)
    }
}
