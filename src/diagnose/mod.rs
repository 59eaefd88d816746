//! `probe diagnose`: why a run is slow or grows, what that costs, and silence where nothing stands out.
//!
//! A share of a step is never a cause: every rule ([`rule`], a file of SQL each) has a reference of its own, and time above the
//! reference is removed in a replay ([`replay`]) to compute what that would save.

mod diagnosis;
mod finding;
mod findings_over_time;
mod judge;
mod line;
mod more_evidence;
mod page;
mod placeholders;
mod ranking;
mod recorded;
mod recording;
mod reference;
mod replay;
mod request;
mod rows;
pub(crate) mod rule;
pub(crate) mod rule_files;
mod ruled_out;
mod sampled;
mod statistics;
mod step_reader;
mod steps;
mod suspect;
mod time_above_reference;
mod verdict;
mod verify;
mod waterfall;

use std::collections::BTreeMap;

pub(crate) use diagnosis::{Diagnosis, UndecidedRule};
pub(crate) use finding::{Finding, Severity};
pub(crate) use findings_over_time::{FindingChange, FindingsOverTime};
pub(crate) use more_evidence::ask;
pub(crate) use page::{json, page};
pub(crate) use reference::Reference;
pub(crate) use steps::MIN_STEPS;
pub(crate) use suspect::suspect;
pub(crate) use verify::verify;

use self::recorded::RecordedCounts;
use self::replay::TimeReduction;
use self::rule::{Rule, RuleKind};
use self::ruled_out::RuledOut;
use crate::step_window::StepWindow;
use probe_client::Client;
use probe_common::error::{Error, ErrorKind as Failure, Result};

/// Settings of a diagnosis.
#[derive(Default)]
pub(crate) struct DiagnosisSettings {
    /// The steps to look at; the newest ones where there is no window.
    pub(crate) window: Option<StepWindow>,
    /// Rules of the user's own, in addition to those built in.
    pub(crate) own: Vec<Rule>,
    /// Names of the rules to run; all rules where there are none.
    pub(crate) only: Vec<String>,
    /// The reference with which the steps are compared.
    pub(crate) reference: Option<Reference>,
}

/// Runs every rule.
///
/// # Errors
/// The errors of the steps' queries; the SQL of a user's rule fails; a rule that is named does not exist; the run goes away meanwhile.
pub(crate) async fn diagnose(client: &mut Client, name: &str, asked: &DiagnosisSettings) -> Result<Diagnosis> {
    let steps = step_reader::read(client, name, asked.window).await?;
    if asked.reference.is_some() {
        reference::comparable(&steps, name)?;
    }
    let mut done = Diagnosis {
        error: replay::error(&steps),
        findings: Vec::new(),
        waterfall: Vec::new(),
        ruled_out: Vec::new(),
        not_decided: Vec::new(),
        against: None,
        asked: None,
        recording: recording::RecordingCost::read(client, &steps).await,
        steps,
    };
    if let Some(reference) = &asked.reference {
        done.against = Some(reference.against(client, &done.steps).await?);
    }
    let mut candidates = Vec::new();
    let mut rules: BTreeMap<String, Rule> = BTreeMap::new();
    let built_in = rule_files::built_in()?;
    let names: Vec<String> = built_in.iter().map(|rule| rule.name.clone()).collect();
    let mut all = built_in;
    for rule in &asked.own {
        if all.iter().any(|other| other.name == rule.name) {
            return Err(Error::usage(format!("there are two rules '{}'", rule.name)).hint("call yours something else"));
        }
        all.push(rule.clone());
    }
    let mut all = rule_files::only(all, &asked.only)?;
    if done.steps.captures > 0 && asked.only.is_empty() {
        // The others are about steps that an agent recorded.
        all.retain(|rule| rule.is_of_captures() || !names.contains(&rule.name));
    }
    let recorded = RecordedCounts::read(client, &done.steps, &all).await?;
    for rule in all {
        let is_own = !names.contains(&rule.name);
        // Without a reference, rules that compare with one do not run.
        if !rule.needs_reference() || asked.reference.is_some() {
            candidates.extend(one(client, &rule, is_own, asked.reference.as_ref(), &recorded, &mut done).await?);
        }
        rules.insert(rule.name.clone(), rule);
    }
    let (findings, ruled_out, uncertain) = ranking::rank(&done.steps, candidates, &rules);
    done.findings = findings;
    done.ruled_out.extend(ruled_out);
    let open = |(rule, why)| UndecidedRule { rule, why, how: "let it train longer".into() };
    done.not_decided.extend(uncertain.into_iter().map(open));
    sampled::name_lines(client, &mut done, &rules).await?;
    let claims: Vec<Vec<TimeReduction>> = done.findings.iter().map(|finding| finding.reductions.clone()).collect();
    done.waterfall = waterfall::waterfall(&done.steps, &claims);
    Ok(done)
}

/// Runs one rule: returns its findings, or notes in `done` why there are none.
async fn one(
    client: &mut Client,
    rule: &Rule,
    is_own: bool,
    reference: Option<&Reference>,
    recorded: &RecordedCounts,
    done: &mut Diagnosis,
) -> Result<Vec<Finding>> {
    let undecided = |why: String| UndecidedRule { rule: rule.name.clone(), why, how: rule.record.clone() };
    let least = match rule.kind {
        RuleKind::Time => MIN_STEPS,
        RuleKind::Trend => 1,
        RuleKind::Fact => 0,
    };
    if done.steps.count() < least {
        let why = format!("{} steps after the warm-up are too few: the rule needs {least}", done.steps.count());
        done.not_decided.push(UndecidedRule { rule: rule.name.clone(), why, how: "let it train longer".into() });
        return Ok(Vec::new());
    }
    if rule.kind == RuleKind::Time && !done.fits() {
        done.not_decided.push(undecided(verdict::replay_does_not_fit(done)));
        return Ok(Vec::new());
    }
    let reference = reference.filter(|_| rule.needs_reference());
    if let Some(why) = reference.and_then(Reference::too_few) {
        done.not_decided.push(undecided(why));
        return Ok(Vec::new());
    }
    if let Some(lack) = recorded.lack(rule) {
        done.not_decided.push(undecided(lack));
        return Ok(Vec::new());
    }
    let values = reference.map(|reference| reference.values(&done.steps)).unwrap_or_default();
    let sql = done.steps.fill(&rule.sql).replace(rule::REFERENCE, &values);
    let rows = match rows::ask(client, &sql).await {
        Ok(rows) => rows,
        Err(error) if error.kind() == Failure::Unreachable => return Err(error),
        Err(error) if is_own && error.kind() != Failure::Limit => {
            return Err(Error::usage(format!("the SQL of rule '{}'", rule.name))
                .because(error.clone())
                .hint(error.hint_text().unwrap_or("probe query -f runs it alone, with numbers in place of $window")));
        }
        Err(error) => {
            done.not_decided.push(undecided(error.to_string()));
            return Ok(Vec::new());
        }
    };
    let mut judged = judge::judge(rule, &rows, &done.steps);
    for finding in &mut judged.findings {
        finding.sql.clone_from(&sql);
    }
    let not_shared = done.steps.shared.not_shared().filter(|_| rule.compares_ranks() && judged.findings.is_empty());
    if let Some(why) = not_shared {
        done.not_decided.push(undecided(why));
    } else if judged.is_undecided {
        done.not_decided.push(undecided(judged.why));
    } else if judged.findings.is_empty() {
        done.ruled_out.push(RuledOut { rule: rule.name.clone(), why: judged.why, score: judged.score });
    }
    Ok(judged.findings)
}
