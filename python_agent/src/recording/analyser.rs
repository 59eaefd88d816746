//! The analyser, which makes rows of the records of this process.

use std::sync::{LazyLock, Mutex};

use super::symbolizer::Symbolizer;
use probe_trace::Analyser;

pub(super) static ANALYSER: LazyLock<Mutex<Analyser<Symbolizer>>> =
    LazyLock::new(|| Mutex::new(Analyser::new(Symbolizer)));
