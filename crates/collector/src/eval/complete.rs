//! Calls that complete a name while it is typed. The agent looks into objects and runs no code of theirs, which is why such a
//! call has no row in `probe.evals`. This module makes sure that it asks for nothing else.

use probe_common::error::{Error, Result};
use probe_proto::v1::EvalCall;

/// Longest chain of names (bytes).
const MAX_CHAIN_BYTES: usize = 512;

/// Checks that a call asks for a completion and nothing else.
pub(super) fn check(call: &EvalCall) -> Result<()> {
    let chain = &call.complete;
    if !call.code.is_empty() || call.end_session {
        return Err(Error::usage("a call can run a snippet or complete a name, not both"));
    }
    let is_name = chain.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '.' | '[' | ']'));
    if !is_name || chain.len() > MAX_CHAIN_BYTES {
        return Err(Error::usage(format!(
            "only names, attributes and subscripts up to {MAX_CHAIN_BYTES} bytes can be completed"
        )));
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
        for wrong in ["a')", "a\\", "a b", "f(x)", "a\n", "d['a']", "\u{2028}", &"a".repeat(MAX_CHAIN_BYTES + 1)] {
            assert!(check(&call(wrong)).is_err(), "{wrong}");
        }
        assert!(check(&EvalCall { code: "x".into(), ..call("a") }).is_err());
        assert!(check(&EvalCall { end_session: true, ..call("a") }).is_err());
    }
}
