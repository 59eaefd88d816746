//! The switches of a console: how answers look, and where Python runs.

use std::path::PathBuf;
use std::time::Duration;

use probe_common::error::Result;
use probe_proto::v1::At;

use super::show::AnswerSink;
use crate::cli::eval::SnippetRank;
use crate::cli::report;
use crate::output::RowLayout;

/// The default deadline of a snippet.
pub(super) const SNIPPET: Duration = Duration::from_secs(30);

/// A switch, and its new value.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum SwitchChange {
    /// None toggles, here and in `Timing` and `Pager`.
    Expanded(Option<bool>),
    Timing(Option<bool>),
    Pager(Option<bool>),
    Output(Option<PathBuf>),
    /// `Some(None)`: as the snippet needs. `None` prints the current value, here and in the variants below.
    Rank(Option<Option<SnippetRank>>),
    At(Option<At>),
    Timeout(Option<Option<Duration>>),
    Frame(Option<Option<u32>>),
}

/// The current values of the switches.
pub(super) struct ConsoleSwitches {
    pub(super) sink: AnswerSink,
    records: bool,
    pub(super) timing: bool,
    pub(super) pager: bool,
    pub(super) rank: Option<SnippetRank>,
    pub(super) at: At,
    pub(super) timeout: Option<Duration>,
    /// The one frame of the training thread whose names snippets see.
    pub(super) frame: Option<u32>,
}

impl ConsoleSwitches {
    /// The values at the beginning of a console.
    pub(super) fn new(interactive: bool) -> Self {
        let (records, timing, rank, timeout, frame) = (false, false, None, None, None);
        Self { sink: AnswerSink::Screen, records, timing, pager: interactive, rank, at: At::Auto, timeout, frame }
    }

    pub(super) fn shape(&self) -> RowLayout {
        if self.records { RowLayout::Records } else { RowLayout::Fit }
    }

    /// Sets a switch, and prints its value if a person is there.
    pub(super) fn turn(&mut self, switch: SwitchChange, interactive: bool) -> Result<()> {
        let say = |what: &str, flag: bool| {
            if interactive {
                report::note(format_args!("{what}: {}", if flag { "on" } else { "off" }));
            }
        };
        match switch {
            SwitchChange::Expanded(flag) => {
                self.records = flag.unwrap_or(!self.records);
                say("a line a value", self.records);
            }
            SwitchChange::Timing(flag) => {
                self.timing = flag.unwrap_or(!self.timing);
                say("times", self.timing);
            }
            SwitchChange::Pager(flag) => {
                self.pager = flag.unwrap_or(!self.pager) && interactive;
                say("pager", self.pager);
            }
            SwitchChange::Output(path) => self.sink = AnswerSink::open(path)?,
            SwitchChange::Rank(None) => report::note(match self.rank {
                None => "Python runs on the ranks that the snippet needs".to_owned(),
                Some(SnippetRank::All) => "Python runs on all ranks".to_owned(),
                Some(SnippetRank::One(rank)) => format!("Python runs on rank {rank}"),
            }),
            SwitchChange::Rank(Some(rank)) => self.rank = rank,
            SwitchChange::At(None) => report::note(match self.at {
                At::Auto => "Python runs where the snippet needs to",
                At::Now => "Python runs beside training",
                At::Step => "Python runs between two steps",
            }),
            SwitchChange::At(Some(at)) => self.at = at,
            SwitchChange::Timeout(None) => report::note(match self.timeout {
                None => format!("a snippet may take {SNIPPET:?}, a query as long as the collector allows"),
                Some(timeout) => format!("a query or snippet may take {}", humantime::format_duration(timeout)),
            }),
            SwitchChange::Timeout(Some(timeout)) => self.timeout = timeout,
            SwitchChange::Frame(None) => report::note(match self.frame {
                None => "Python sees the names of all of the user's frames".to_owned(),
                Some(frame) => format!("Python sees the names of frame {frame} alone"),
            }),
            SwitchChange::Frame(Some(frame)) => self.frame = frame,
        }
        Ok(())
    }
}
