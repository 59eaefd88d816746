//! `probe diagnose`: why a run is slow or grows, what that costs, and silence where nothing stands out.
//!
//! A share of a step is never a cause: every rule ([`rule`], a file of SQL each) has a reference of its own, and what is
//! above it is replayed away ([`replay`]) to say what it would save.

mod finding;
mod judge;
mod page;
mod replay;
mod rows;
pub(crate) mod rule;
mod statistics;
mod steps;
mod waterfall;

use std::collections::BTreeMap;

pub(crate) use finding::{Finding, Severity};
pub(crate) use page::{json, page};

use self::replay::{FITS, Reduction, replay};
use self::rule::{Kind, Rule};
use self::statistics::ratio_interval;
use self::steps::{Steps, Ticks, seconds};
use self::waterfall::Leaf;
use crate::compare::Window;
use crate::compare::statistics::Draws;
use probe_client::Client;
use probe_common::error::{Error, Kind as Failure, Result};

/// Steps from which on anything is said about time.
pub(crate) const FEWEST: usize = 40;

/// A rule that could not say anything, why, and what would record what it needs.
pub(crate) struct Undecided {
    pub(crate) rule: String,
    pub(crate) why: String,
    pub(crate) how: String,
}

pub(crate) struct Diagnosis {
    pub(crate) steps: Steps,
    pub(crate) findings: Vec<Finding>,
    pub(crate) waterfall: Vec<Leaf>,
    /// Rules that were silent, and why.
    pub(crate) ruled_out: Vec<(String, String)>,
    pub(crate) not_decided: Vec<Undecided>,
    /// The replay's.
    pub(crate) error: f64,
}

impl Diagnosis {
    pub(crate) fn fits(&self) -> bool {
        self.error.abs() <= FITS
    }

    /// The finding that is worth a verdict: the first of the worst.
    pub(crate) fn verdict(&self) -> Option<&Finding> {
        let worth = self.findings.iter().filter(|of| of.severity >= Severity::Warn && of.confidence != "possible");
        worth.rev().max_by_key(|of| of.severity)
    }
}

/// Asks every rule.
///
/// # Errors
/// The queries of the steps; a rule of the user's whose SQL fails.
pub(crate) async fn diagnose(
    client: &mut Client,
    name: &str,
    window: Option<Window>,
    own: Vec<Rule>,
) -> Result<Diagnosis> {
    let steps = steps::read(client, name, window).await?;
    let mut done = Diagnosis {
        error: replay::error(&steps),
        findings: Vec::new(),
        waterfall: Vec::new(),
        ruled_out: Vec::new(),
        not_decided: Vec::new(),
        steps,
    };
    let mut candidates = Vec::new();
    let built_in = rule::built_in()?;
    let mut levels = BTreeMap::new();
    for (rule, is_own) in built_in.into_iter().map(|rule| (rule, false)).chain(own.into_iter().map(|rule| (rule, true)))
    {
        if levels.contains_key(&rule.name) {
            return Err(Error::usage(format!("there are two rules '{}'", rule.name)).hint("call yours something else"));
        }
        candidates.extend(one(client, &rule, is_own, &mut done).await?);
        levels.insert(rule.name.clone(), rule);
    }
    rank(&mut done, candidates, &levels);
    let claims: Vec<Vec<Reduction>> = done.findings.iter().map(|finding| finding.reductions.clone()).collect();
    done.waterfall = waterfall::waterfall(&done.steps, &claims);
    Ok(done)
}

/// What one rule has to say.
async fn one(client: &mut Client, rule: &Rule, is_own: bool, done: &mut Diagnosis) -> Result<Vec<Finding>> {
    let undecided = |why: String| Undecided { rule: rule.name.clone(), why, how: rule.record.clone() };
    if rule.kind == Kind::Time && done.steps.count() < FEWEST {
        let why = format!("{} steps without warming up are too few: it takes {FEWEST}", done.steps.count());
        done.not_decided.push(Undecided { rule: rule.name.clone(), why, how: "let it train for longer".into() });
        return Ok(Vec::new());
    }
    if rule.kind == Kind::Time && !done.fits() {
        done.not_decided.push(undecided("the replay does not fit this run".into()));
        return Ok(Vec::new());
    }
    for need in &rule.needs {
        let (table, column) = need.rsplit_once('.').unwrap_or((need, "*"));
        let sql = done.steps.fill(&format!("SELECT COUNT({column}) AS count FROM {table} WHERE $window"));
        if rows::ask(client, &sql).await.ok().and_then(|found| found.int("count", 0)).unwrap_or(0) == 0 {
            done.not_decided.push(undecided(format!("{need} is not recorded in these steps")));
            return Ok(Vec::new());
        }
    }
    let sql = done.steps.fill(&rule.sql);
    let rows = match rows::ask(client, &sql).await {
        Ok(rows) => rows,
        Err(error) if is_own && !matches!(error.kind(), Failure::Limit | Failure::Unreachable) => {
            return Err(Error::usage(format!("the SQL of rule '{}': {error}", rule.name))
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
    if judged.too_few {
        done.not_decided.push(undecided(judged.why));
    } else if judged.findings.is_empty() {
        done.ruled_out.push((rule.name.clone(), judged.why));
    }
    Ok(judged.findings)
}

fn percent(part: Ticks, of: Ticks) -> f64 {
    if of > 0 { part as f64 / of as f64 * 100.0 } else { 0.0 }
}

/// The one that saves most for certain first, then the one that saves most of what is left, and so on; then those that
/// save no time, the worst first.
fn rank(done: &mut Diagnosis, candidates: Vec<Finding>, rules: &BTreeMap<String, Rule>) {
    let steps = &done.steps;
    let draws = Draws::new(steps.count(), 5);
    let float = |values: &[Ticks]| values.iter().map(|value| *value as f64).collect::<Vec<_>>();
    let base = replay(steps, &[]);
    let whole: Ticks = base.iter().sum();
    let of_base = float(&base);
    let (mut timed, mut others): (Vec<_>, Vec<_>) = candidates.into_iter().partition(|of| !of.reductions.is_empty());
    let alone = |finding: &Finding| {
        let without: Ticks = replay(steps, &finding.reductions.iter().collect::<Vec<_>>()).iter().sum();
        percent(whole - without, whole)
    };
    let mut before: Vec<Reduction> = Vec::new();
    let mut found: Vec<Finding> = Vec::new();
    let all_alone: Vec<(String, Vec<String>, f64)> =
        timed.iter().map(|of| (of.rule.clone(), of.explains.clone(), alone(of))).collect();
    // What another one explains nearly all of is that one's symptom.
    timed.retain(|of| {
        let mine = alone(of);
        let cause = all_alone.iter().find(|(_, explains, saves)| explains.contains(&of.rule) && *saves >= 0.8 * mine);
        if let Some((cause, ..)) = cause.filter(|_| mine > 0.0) {
            done.ruled_out.push((of.rule.clone(), format!("{cause} explains it")));
        }
        cause.is_none() || mine <= 0.0
    });
    loop {
        let now = replay(steps, &before.iter().collect::<Vec<_>>());
        let left: Ticks = now.iter().sum();
        let mut best: Option<(usize, f64, f64, Ticks)> = None;
        let mut silent = Vec::new();
        for (place, finding) in timed.iter().enumerate() {
            let with: Vec<&Reduction> = before.iter().chain(&finding.reductions).collect();
            let then = replay(steps, &with);
            let gain: Vec<Ticks> = now.iter().zip(&then).map(|(now, then)| now - then).collect();
            let sum: Ticks = gain.iter().sum();
            let rule = &rules[&finding.rule];
            let enough = percent(sum, whole) >= rule.levels[0];
            let (low, high) = match ratio_interval(&draws, &float(&gain), &of_base) {
                Some((low, high)) if enough => (low * 100.0, high * 100.0),
                _ => (0.0, 0.0),
            };
            let a_step = seconds(sum) / steps.count().max(1) as f64;
            let matters = a_step >= 0.001 || percent(sum, whole) >= 5.0;
            if rule::severity(rule, low).is_none() || !matters {
                silent.push((place, percent(sum, whole)));
            } else if best.is_none_or(|(_, most, ..)| low > most) {
                best = Some((place, low, high, left - sum));
            }
        }
        let Some((place, low, high, after)) = best else {
            for (place, saves) in silent {
                let why = if before.is_empty() { "" } else { " after those above" };
                done.ruled_out.push((timed[place].rule.clone(), format!("it would save {saves:.1} %{why}")));
            }
            break;
        };
        let mut finding = timed.remove(place);
        finding.severity = rule::severity(&rules[&finding.rule], low).unwrap_or(Severity::Note);
        let ms = |ticks: Ticks| seconds(ticks) * 1000.0 / steps.count().max(1) as f64;
        finding.saving = Some(finding::Saving {
            ms: ms(left - after),
            percent: percent(left - after, whole),
            low,
            high,
            alone: alone(&finding),
            after: ms(after),
        });
        before.extend(finding.reductions.iter().cloned());
        found.push(finding);
    }
    others.sort_by_key(|of| std::cmp::Reverse(of.severity));
    found.extend(others);
    for finding in &mut found {
        (finding.says, finding.remedy) = (finding.text(&finding.says), finding.text(&finding.remedy));
    }
    done.findings = found;
}
