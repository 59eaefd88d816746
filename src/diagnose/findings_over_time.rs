//! Finds the warnings that are new since the last diagnosis of the same run, and those that are gone.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::diagnosis::Diagnosis;
use super::finding::Finding;

/// Diagnoses in a row that have to be without a finding until it is gone.
const GONE_AFTER: u32 = 2;

/// A rule and its subject. Ranks are not part of it: one more rank is no new finding.
type FindingKey = (String, BTreeMap<String, String>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct CurrentFinding {
    says: String,
    /// Diagnoses in a row without the finding.
    absent: u32,
}

/// A change since the last diagnosis.
#[derive(Debug, Clone)]
pub(crate) enum FindingChange {
    /// A finding of at least `warn` that was not there before.
    New(Box<Finding>),
    Gone {
        says: String,
        details: Value,
    },
}

impl FindingChange {
    /// The details of the event about this change, beside its message.
    pub(crate) fn details(&self) -> Value {
        match self {
            Self::New(finding) => {
                let mut details = finding.json();
                // The SQL is a copy of the rule's file.
                details.as_object_mut().map(|details| details.remove("sql"));
                details["state"] = json!("new");
                details
            }
            Self::Gone { details, .. } => details.clone(),
        }
    }
}

/// Warnings that were reported and are not gone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct FindingsOverTime(BTreeMap<FindingKey, CurrentFinding>);

impl FindingsOverTime {
    /// Restores the state from the details of earlier changes, in their order.
    pub(crate) fn restore<'a>(noted: impl IntoIterator<Item = &'a str>) -> Self {
        let mut current = BTreeMap::new();
        for details in noted {
            let Ok(details) = serde_json::from_str::<Value>(details) else { continue };
            let (Some(rule), Some(subject)) = (details["rule"].as_str(), details["subject"].as_object()) else {
                continue;
            };
            let apart = if details["sampled"].is_object() { "line" } else { "" };
            let texts = subject.iter().filter(|(name, _)| !["rank", "ranks", apart].contains(&name.as_str()));
            let subject = texts.filter_map(|(name, of)| Some((name.clone(), of.as_str()?.to_owned()))).collect();
            let key = (rule.to_owned(), subject);
            if details["state"] == "gone" {
                current.remove(&key);
            } else {
                let says = details["says"].as_str().unwrap_or_default().to_owned();
                current.insert(key, CurrentFinding { says, absent: 0 });
            }
        }
        Self(current)
    }

    /// Updates the state by the newest diagnosis, and returns the changes.
    pub(crate) fn update_with(&mut self, diagnosis: &Diagnosis) -> Vec<FindingChange> {
        let undecided = |rule: &str| diagnosis.not_decided.iter().any(|open| open.rule == rule);
        self.update(&diagnosis.findings, undecided)
    }

    fn update(&mut self, findings: &[Finding], undecided: impl Fn(&str) -> bool) -> Vec<FindingChange> {
        let mut changes = Vec::new();
        for finding in findings.iter().filter(|finding| finding.is_warning()) {
            let key = (finding.rule.clone(), finding.subject.clone());
            if self.0.insert(key, CurrentFinding { says: finding.says.clone(), absent: 0 }).is_none() {
                changes.push(FindingChange::New(Box::new(finding.clone())));
            }
        }
        // A finding that became a note is still there, and an undecided rule does not end a finding.
        let is_there = |(rule, subject): &FindingKey| {
            undecided(rule) || findings.iter().any(|finding| finding.rule == *rule && finding.subject == *subject)
        };
        self.0.retain(|key, current| {
            current.absent = if is_there(key) { 0 } else { current.absent + 1 };
            if current.absent < GONE_AFTER {
                return true;
            }
            let (rule, subject) = key;
            let details = json!({ "rule": rule, "subject": subject, "state": "gone" });
            changes.push(FindingChange::Gone { says: current.says.clone(), details });
            false
        });
        changes
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::finding::SavingKind;
    use super::super::line::{CodeLocation, SampledLine};
    use super::*;
    use crate::diagnose::Severity;

    /// A finding of a rank about one module.
    pub(crate) fn finding(rule: &str, severity: Severity, rank: i64) -> Finding {
        Finding {
            rule: rule.to_owned(),
            family: String::new(),
            confidence: "measured".to_owned(),
            severity,
            ranks: vec![rank],
            everywhere: false,
            subject: BTreeMap::from([("module".to_owned(), "layers.3".to_owned())]),
            sampled: None,
            cost_ms: None,
            ref_ms: None,
            saving: None,
            saving_kind: SavingKind::Replay,
            steps: 100,
            persistence: None,
            facts: BTreeMap::new(),
            says: format!("{rule} says so"),
            remedy: String::new(),
            explains: Vec::new(),
            sql: String::new(),
            reductions: Vec::new(),
            certain: Vec::new(),
        }
    }

    fn new(changes: &[FindingChange]) -> Vec<&str> {
        changes.iter().map(|change| if let FindingChange::New(of) = change { &of.rule } else { "gone" }).collect()
    }

    #[test]
    fn a_warning_is_new_once_and_gone_once() {
        let mut over_time = FindingsOverTime::default();
        let decided = |_: &str| false;
        let found = [finding("a", Severity::Warn, 0), finding("b", Severity::Note, 0)];
        assert_eq!(new(&over_time.update(&found, decided)), ["a"]);
        // On another rank, and milder.
        assert!(over_time.update(&[finding("a", Severity::Critical, 1)], decided).is_empty());
        assert!(over_time.update(&[finding("a", Severity::Note, 1)], decided).is_empty());
        // Away for one diagnosis, and back.
        assert!(over_time.update(&[], decided).is_empty());
        assert!(over_time.update(&found, decided).is_empty());
        assert!(over_time.update(&[], decided).is_empty());
        assert_eq!(new(&over_time.update(&[], decided)), ["gone"]);
        assert!(over_time.update(&[], decided).is_empty());
        assert_eq!(new(&over_time.update(&found, decided)), ["a"]);
    }

    #[test]
    fn what_is_not_decided_is_not_gone() {
        let mut over_time = FindingsOverTime::default();
        over_time.update(&[finding("a", Severity::Warn, 0)], |_| false);
        for _ in 0..5 {
            assert!(over_time.update(&[], |rule| rule == "a").is_empty());
        }
    }

    #[test]
    fn the_next_collector_goes_on() {
        let mut before = FindingsOverTime::default();
        let mut noted = Vec::new();
        for found in [vec!["a", "b"], vec!["b"], vec!["b"]] {
            let mut found: Vec<_> = found.into_iter().map(|rule| finding(rule, Severity::Warn, 0)).collect();
            // A line that samples say is of this diagnosis, and not of the finding.
            let location = CodeLocation { function: "burn".into(), file: "train.py".into(), line: noted.len() as i64 };
            let line =
                SampledLine { location, is_line: true, library: None, samples: 20, share: 1.0, beside: Vec::new() };
            found.iter_mut().for_each(|of| of.sampled = Some(line.clone()));
            noted.extend(before.update(&found, |_| false).into_iter().map(|change| change.details().to_string()));
        }
        assert_eq!(noted.len(), 3);
        let mut after = FindingsOverTime::restore(noted.iter().map(String::as_str));
        assert_eq!(after, before);
        assert!(after.update(&[finding("b", Severity::Warn, 0)], |_| false).is_empty());
    }
}
