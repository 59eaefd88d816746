//! Every environment variable that `probe` reads. This module alone declares and documents them.

use crate::config::layer_names;

/// A declared variable.
#[derive(Debug)]
pub struct EnvVar {
    /// The variable's name.
    pub name: &'static str,
    /// What the variable does, in one sentence.
    pub doc: &'static str,
    /// The value that applies where the variable is not set.
    pub default: &'static str,
}

macro_rules! variables {
    ($($ident:ident = $name:literal, $default:literal, $doc:expr;)*) => {
        $(#[doc = $doc] pub const $ident: &str = $name;)*
        /// All variables, in the order in which the documentation shows them.
        pub static ALL: &[EnvVar] = &[$(EnvVar { name: $name, doc: $doc, default: $default }),*];
    };
}

variables! {
    PROBE = "PROBE", "", "1 activates the agent in every Python process that imports torch and has the wheel installed. 0 keeps it off, whatever else is set.";
    PROBE_COLLECTOR = "PROBE_COLLECTOR", "a collector started by the first agent of the run", "Address that agents send to: unix:PATH or HOST:PORT.";
    PROBE_ENDPOINT = "PROBE_ENDPOINT", "the only live run", "ENDPOINT that commands use when none is given.";
    PROBE_RUN = "PROBE_RUN", "the script's name", "The run's name.";
    PROBE_DETAIL = "PROBE_DETAIL", "auto", "Which steps have their modules recorded: auto (as many as PROBE_OVERHEAD_BUDGET allows, one of 8 at least, and all for a while when steps get slower), every-step, 1/N (every Nth) or off.";
    PROBE_OVERHEAD_BUDGET = "PROBE_OVERHEAD_BUDGET", "1%", "Maximum cost of recording, as a share of step time, with PROBE_DETAIL=auto: 1%, 0.5%.";
    PROBE_LAYERS = "PROBE_LAYERS", "all", concat!("Layers of recording, comma-separated (", layer_names!(), "); -NAME switches one off, NAME=MECHANISM chooses its mechanism (forward=fast_call: modules without hooks are called by their forward, past torch's own __call__).");
    PROBE_EVAL = "PROBE_EVAL", "on", "off: this process runs no snippets. tcp: it also runs snippets that arrive over TCP. on: it runs only snippets that arrive over unix sockets.";
    PROBE_HOME = "PROBE_HOME", "$XDG_STATE_HOME/probe, else ~/.local/state/probe", "Directory of the recorded runs.";
    PROBE_RUNTIME_DIR = "PROBE_RUNTIME_DIR", "$XDG_RUNTIME_DIR/probe, else a directory of mode 0700 under the temporary one", "Directory of the sockets of live collectors.";
    PROBE_TOKEN_FILE = "PROBE_TOKEN_FILE", "", "File with the token for a TCP endpoint, as probe token make writes it, with mode 0600. A second line can have the pin of the collector's certificate: pin sha256:…";
    PROBE_TLS_PIN = "PROBE_TLS_PIN", "", "SHA-256 of a TCP collector's certificate (sha256:…), if the token file does not have it. insecure-no-tls sends the token to other machines unencrypted.";
    PROBE_MEMORY = "PROBE_MEMORY", "a quarter of the machine's memory, at most 2 GiB", "Memory that the collector's rows may take: bytes, or 512M, 2G.";
    PROBE_DISK = "PROBE_DISK", "10G", "Disk that a run's directory may take. When it is full, the oldest rows are deleted and counted: bytes, or 512M, 2G.";
    PROBE_QUERY_MEMORY = "PROBE_QUERY_MEMORY", "a quarter of PROBE_MEMORY, at least 64M", "Memory that all queries of a collector together may take for hash tables, sorting, results of functions and answers that wait to be sent: bytes, or 512M, 2G; a client can ask for less (probe-max-memory, in bytes).";
    PROBE_QUERY_TIMEOUT = "PROBE_QUERY_TIMEOUT", "5m", "Maximum time of a query in a collector: 30s, 10m; off means no limit. A client can ask for less (--timeout).";
    PROBE_QUERY_ROWS = "PROBE_QUERY_ROWS", "100000000", "Maximum rows of an answer. A client can ask for fewer (--max-rows).";
    PROBE_QUERY_BYTES = "PROBE_QUERY_BYTES", "8G", "Maximum size of an answer: bytes, or 512M, 2G. A client can ask for less (--max-bytes).";
    PROBE_QUERIES = "PROBE_QUERIES", "as many as there are cores, at least 4", "Queries that a collector plans and runs at a time; 32 more may wait. A query whose client does not read its answer is not counted.";
    PROBE_HANG_AFTER = "PROBE_HANG_AFTER", "30s", "How long steps may stop before the collector looks for a hang and records it in probe.events: 30s, 5m; off is never. It also waits for ten times the usual duration of a step. Before the first steps, a collective may wait ten times as long.";
    PROBE_DIAGNOSE_EVERY = "PROBE_DIAGNOSE_EVERY", "1m", "How often a collector diagnoses its run by itself, to record new warnings in probe.events (kind finding): 1m, 10m; off is never. It waits for 200 times as long as a diagnosis takes, so that they take half a percent of one processor at most.";
    PROBE_STACK_SAMPLING = "PROBE_STACK_SAMPLING", "on", "off: the collector does not sample the stacks of the run's processes by itself (python.stack_samples). probe diagnose --ask, probe stack and probe flamegraph still read them.";
    PROBE_GPU_METRICS = "PROBE_GPU_METRICS", "1s", "How often a collector reads gpu.metrics from the driver: 1s, 10s; off is never.";
    PROBE_BIN = "PROBE_BIN", "the one installed with the wheel, else on PATH", "The probe binary that an agent starts when it finds no collector.";
}
