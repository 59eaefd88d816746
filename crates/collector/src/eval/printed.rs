//! What a snippet prints, for whoever wants nothing else of it.

use futures::{Stream, StreamExt};
use probe_proto::v1::eval_event::Event;
use probe_proto::v1::{EvalEvent, Finished};

/// Standard output up to the end of the snippet, and how it ended; None where its events end before it does.
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
