//! What makes rows of the records of this process.

use std::sync::{LazyLock, Mutex};

use super::names;
use probe_trace::Analyser;

pub(super) static ANALYSER: LazyLock<Mutex<Analyser<names::Known>>> =
    LazyLock::new(|| Mutex::new(Analyser::new(names::Known)));
