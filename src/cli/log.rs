//! Messages of a running collector, on standard error in the form of a command's messages.

use std::fmt;

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

/// Warnings, but none of the libraries that read the memory of processes: they warn of any process that changes or ends meanwhile,
/// and `probe stack` reports read errors itself.
const SHOWN: &str = "warn,py_spy=off,remoteprocess=off";

/// Shows warnings, or what RUST_LOG asks for.
pub(super) fn to_stderr() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(SHOWN));
    // A second call changes nothing.
    let words = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .event_format(MessageFormat)
        // The layer would report a closed standard error on standard error, and panic.
        .log_internal_errors(false);
    let _ = tracing_subscriber::registry().with(words.with_filter(filter)).try_init();
}

/// `probe: warning: …`
struct MessageFormat;

impl<S, N> FormatEvent<S, N> for MessageFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let level = match *event.metadata().level() {
            Level::ERROR => "error: ",
            Level::WARN => "warning: ",
            _ => "",
        };
        write!(writer, "probe: {level}")?;
        context.format_fields(writer.by_ref(), event)?;
        writeln!(writer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_that_read_processes_are_not_heard() {
        let subscriber = tracing_subscriber::registry().with(EnvFilter::new(SHOWN));
        tracing::subscriber::with_default(subscriber, || {
            assert!(tracing::enabled!(target: "probe_collector::session", Level::WARN));
            assert!(!tracing::enabled!(target: "probe_collector::session", Level::INFO));
            assert!(!tracing::enabled!(target: "py_spy::stack_trace", Level::ERROR));
            assert!(!tracing::enabled!(target: "remoteprocess::linux::symbolication", Level::ERROR));
        });
    }
}
