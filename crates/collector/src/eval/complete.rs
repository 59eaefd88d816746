//! What somebody is typing, to be completed. The agent looks at how things lie in objects and runs nothing of theirs,
//! which is why it has no row in `probe.evals`; that nothing else is asked for in its name is made sure here.

use probe_common::error::{Error, Result};
use probe_proto::v1::EvalCall;

/// Longest chain of names (bytes).
const LONGEST: usize = 512;

/// Whether it is that and no more.
pub(super) fn check(call: &EvalCall) -> Result<()> {
    let chain = &call.complete;
    if !call.code.is_empty() || call.end_session {
        return Err(Error::usage("a snippet that runs and a name to complete are two calls"));
    }
    let is_name = chain.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '.' | '[' | ']'));
    if !is_name || chain.len() > LONGEST {
        return Err(Error::usage(format!("names, points and subscripts are completed, {LONGEST} bytes at most")));
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn names_alone_are_completed() {
        let call = |complete: &str| EvalCall { complete: complete.into(), ..EvalCall::default() };
        check(&call("model.layers[0].at")).unwrap();
        for wrong in ["a')", "a\\", "a b", "f(x)", "a\n", "d['a']", "\u{2028}", &"a".repeat(LONGEST + 1)] {
            assert!(check(&call(wrong)).is_err(), "{wrong}");
        }
        assert!(check(&EvalCall { code: "x".into(), ..call("a") }).is_err());
        assert!(check(&EvalCall { end_session: true, ..call("a") }).is_err());
    }
}
