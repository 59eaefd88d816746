//! Checks the size of a frame before it is sent: one that is larger than the collector accepts would end the connection, and the
//! next one too. All code that makes frames bounds their content, so none should be too large here.

use probe_proto::MAX_FRAME;
use probe_proto::v1::agent_frame::Frame;
use probe_proto::v1::{self, EvalReply, Outcome, Status, eval_reply::Reply};

use crate::shared::set_problem;

/// `frame`; if that is too large, a short one that says so instead. Hello, strings and batches are bounded when they are made,
/// and stay as they are.
pub(super) fn fitting(frame: Frame) -> Frame {
    let bytes = frame.encoded_len();
    if bytes <= MAX_FRAME {
        return frame;
    }
    let words = format!("left out: a message of {bytes} bytes, where {MAX_FRAME} are the most");
    let frame = match frame {
        Frame::Eval(EvalReply { id, reply }) => {
            Frame::Eval(EvalReply { id, reply: reply.map(|reply| short(reply, &words)) })
        }
        Frame::Status(status) => Frame::Status(Status {
            problem: words.clone(),
            layers: Default::default(),
            config: Default::default(),
            late: Default::default(),
            groups: Vec::new(),
            ..status
        }),
        frame => frame,
    };
    set_problem(words);
    frame
}

/// A short reply about a snippet instead of one that is too large: `words`, and the outcome if the reply has one.
fn short(reply: Reply, words: &str) -> Reply {
    let error = words.to_owned();
    match reply {
        Reply::Placed(placed) => Reply::Placed(v1::Placed { why: error, ..placed }),
        Reply::Output(_) => Reply::Output(v1::Output { stderr: true, data: format!("probe: {error}\n").into() }),
        Reply::Done(done) => Reply::Done(v1::Done { error, hint: String::new(), ..done }),
        Reply::Armed(_) | Reply::Arrived(_) => {
            Reply::Done(v1::Done { outcome: Outcome::Error as i32, error, ..v1::Done::default() })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_large_is_said_to_be() {
        let long = || "x".repeat(MAX_FRAME);
        let eval = |reply| Frame::Eval(EvalReply { id: 7, reply: Some(reply) });
        let done = |error| Reply::Done(v1::Done { outcome: Outcome::Ok as i32, error, step: 3, ..v1::Done::default() });
        for frame in [
            eval(done(long())),
            eval(Reply::Placed(v1::Placed { at: 1, why: long() })),
            eval(Reply::Output(v1::Output { stderr: false, data: long().into() })),
            eval(Reply::Arrived(v1::Arrived {
                groups: vec![v1::GroupPosition { name: long(), sequence: 1 }],
                ..v1::Arrived::default()
            })),
            Frame::Status(Status { problem: long(), step: 3, ..Status::default() }),
        ] {
            let fits = fitting(frame);
            assert!(fits.encoded_len() < 1000);
            assert!(format!("{fits:?}").contains("left out: a message of 1677"), "{fits:?}");
        }
        let small = eval(done("short".into()));
        assert_eq!(fitting(small.clone()), small);
    }
}
