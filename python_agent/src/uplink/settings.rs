//! What an uplink is started with. Python makes these objects, and the background thread reads them.

#![expect(clippy::too_many_arguments, reason = "each field is an argument of the constructor that Python calls")]

use std::ffi::OsString;
use std::path::PathBuf;

use pyo3::prelude::*;

use crate::python_text::PythonText;
use crate::seconds::Seconds;

/// The command line is truncated to this (characters, and bytes).
pub const MAX_COMMAND_LENGTH: usize = 4096;

/// Settings that are fixed when the uplink starts.
#[pyclass(frozen, new = "from_fields", from_py_object, module = "probe_agent._native")]
#[derive(Debug, Clone)]
pub struct Settings {
    /// Address of the collector: `unix:PATH` or `HOST:PORT`.
    pub collector: String,
    /// File with the token that a collector on TCP requires.
    pub token_file: Option<PathBuf>,
    /// Value of `PROBE_TLS_PIN` when the agent was started.
    pub tls_pin: Option<String>,
    /// Whether snippets that come over TCP are run.
    pub eval_over_tcp: bool,
    /// Why this process can run no snippet; None where it can.
    pub no_snippets: Option<String>,
    /// How long the agent waits before it warns about a missing collector: one that was just started needs a moment.
    pub patience_s: Seconds,
    /// What to do if the collector is missing, for the warning.
    pub hint: String,
    /// How a collector that died is started again; None where the agent does not do that.
    pub revival: Option<CollectorRestart>,
    /// Random, made once in the life of the agent.
    pub instance: String,
    /// The run's name; empty: the collector's own run.
    pub run: String,
    /// Host name.
    pub host: String,
    /// The command line, of which arguments may be any bytes.
    pub command: PythonText<MAX_COMMAND_LENGTH>,
    /// Version of the interpreter.
    pub python_version: String,
    /// Version of torch.
    pub torch_version: String,
    /// Identity of this process at first.
    pub identity: Identity,
}

/// Identity of this process, which may become known later. None for what is not known.
#[pyclass(frozen, new = "from_fields", from_py_object, module = "probe_agent._native")]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Identity {
    /// Global rank.
    pub rank: Option<i32>,
    /// Rank within its host.
    pub local_rank: Option<i32>,
    /// Ranks in the default process group.
    pub world_size: Option<i32>,
}

/// How a collector is started again.
#[pyclass(frozen, new = "from_fields", from_py_object, module = "probe_agent._native")]
#[derive(Debug, Clone)]
pub struct CollectorRestart {
    /// Absolute path of the program.
    pub program: PathBuf,
    /// Arguments after `serve --resume RUN`.
    pub arguments: Vec<OsString>,
    /// The environment as it was when the agent began: Python may change the process's own while it is read.
    pub environment: Vec<(OsString, OsString)>,
    /// File for the collector's standard error.
    pub log: PathBuf,
}
