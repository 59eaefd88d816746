//! A suspected cause that a rule looks for.

use std::collections::BTreeSet;

use super::super::diagnosis::Diagnosis;
use super::super::rule::Rule;
use super::candidate::{CauseVerdict, SuspectCandidate, normalized_name, sentence};

/// The answers of rules that have this name, or for which it is another word.
pub(super) fn judge(
    done: &Diagnosis,
    rules: &[Rule],
    name: &str,
    known: &mut BTreeSet<String>,
) -> Vec<SuspectCandidate> {
    known.extend(rules.iter().flat_map(|rule| rule.also.iter().chain([&rule.name]).cloned()));
    let asked = normalized_name(name);
    let is = |rule: &&Rule| {
        normalized_name(&rule.name) == asked || rule.also.iter().any(|also| normalized_name(also) == asked)
    };
    rules.iter().filter(is).map(|rule| of(done, rule)).collect()
}

fn of(done: &Diagnosis, rule: &Rule) -> SuspectCandidate {
    let found: Vec<_> = done.findings.iter().enumerate().filter(|(_, of)| of.rule == rule.name).collect();
    if let Some((index, finding)) = found.first() {
        let why = found.iter().map(|(index, of)| sentence(index + 1, of)).collect();
        // A finding that is only possible decides nothing.
        let answer = if finding.confidence == "possible" { CauseVerdict::NotDecided } else { CauseVerdict::Yes };
        return SuspectCandidate { finding: Some(index + 1), ..SuspectCandidate::of("rule", &rule.name, answer, why) };
    }
    if let Some(open) = done.not_decided.iter().find(|of| of.rule == rule.name) {
        let how = if open.how.is_empty() { String::new() } else { format!(" ({})", open.how) };
        return SuspectCandidate::of("rule", &rule.name, CauseVerdict::NotDecided, vec![format!("{}{how}", open.why)]);
    }
    let silent: Vec<String> =
        done.ruled_out.iter().filter(|of| of.rule == rule.name).map(|of| of.why.clone()).collect();
    if silent.is_empty() {
        return SuspectCandidate::of(
            "rule",
            &rule.name,
            CauseVerdict::NotDecided,
            vec![format!("it was not asked: {}", rule.record)],
        );
    }
    SuspectCandidate::of("rule", &rule.name, CauseVerdict::No, silent)
}
