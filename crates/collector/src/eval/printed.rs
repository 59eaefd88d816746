//! The standard output of a snippet, for callers that want nothing else.

use futures::{Stream, StreamExt};
use probe_proto::v1::eval_event::Event;
use probe_proto::v1::{EvalEvent, Finished};

/// Collects standard output up to the end of the snippet. Returns it and how the snippet ended; None where the events end before
/// the snippet.
pub async fn printed<E>(
    mut events: impl Stream<Item = Result<EvalEvent, E>> + Unpin,
) -> Result<(Vec<u8>, Option<Finished>), E> {
    let mut printed = Vec::new();
    while let Some(event) = events.next().await {
        match event?.event {
            Some(Event::Output(output)) => {
                let output = output.output.unwrap_or_default();
                if !output.stderr {
                    printed.extend_from_slice(&output.data);
                }
            }
            Some(Event::Finished(finished)) => return Ok((printed, Some(finished))),
            _ => {}
        }
    }
    Ok((printed, None))
}
