//! Intervals of the collector's periodic work, as environment variables set them or turn the work off.

use std::time::Duration;

use crate::error::{Error, Result};

/// The interval in `variable`: `default` where it is not set, None where it is `off`. `examples` are for the hint.
///
/// # Errors
/// The value is no duration, or one below `shortest`.
pub fn read(variable: &str, default: Duration, shortest: Duration, examples: &str) -> Result<Option<Duration>> {
    let text = std::env::var(variable).unwrap_or_default();
    match text.as_str() {
        "" => Ok(Some(default)),
        "off" => Ok(None),
        text => match humantime::parse_duration(text) {
            Ok(period) if period >= shortest => Ok(Some(period)),
            Ok(_) => Err(Error::usage(format!("{variable}={text} is too often"))
                .hint(format!("{variable}={shortest:?} is the shortest"))),
            Err(error) => Err(Error::usage(format!("{variable}={text} is not a duration"))
                .because(error)
                .hint(format!("{variable}={examples} or off"))),
        },
    }
}
