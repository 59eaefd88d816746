//! The analyser, which makes rows of the records of this process.

use super::symbolizer::Symbolizer;
use crate::renewable::Renewable;
use probe_trace::Analyser;

pub(super) static ANALYSER: Renewable<Analyser<Symbolizer>> = Renewable::new(|| Analyser::new(Symbolizer));
