//! The verdict of a diagnosis: a sentence for people.

use super::diagnosis::Diagnosis;
use super::finding::{Finding, SavingKind, show};
use super::replay::FITS;
use super::steps::MIN_STEPS;

/// What stands out, and what a step would take without it; or that nothing does, or why that is not decided.
pub(super) fn verdict(done: &Diagnosis) -> String {
    let steps = &done.steps;
    let and_notes = |notes| list_of_notes(notes).map(|names| format!("; {names}")).unwrap_or_default();
    match (done.verdict(), done.findings.as_slice()) {
        (Some(finding), _) => format!("{}{}", finding.says, without_it(done, finding)),
        (None, notes) if steps.count() < MIN_STEPS && steps.captures == 0 => format!(
            "not decided: {} after the warm-up, and what takes time is judged over {MIN_STEPS} or more{}",
            match steps.count() {
                0 => "no step".to_owned(),
                1 => "1 step".to_owned(),
                count => format!("{count} steps"),
            },
            and_notes(notes)
        ),
        (None, notes) if steps.captures == 0 && !done.fits() => {
            format!("not decided: {}{}", replay_does_not_fit(done), and_notes(notes))
        }
        (None, []) if steps.captures > 0 && !done.not_decided.is_empty() => {
            let decided = done.rules_ruled_out().len();
            let all = decided + done.not_decided.len();
            format!("nothing stands out in what could be decided: {decided} of {all} rules")
        }
        (None, notes) => match list_of_notes(notes) {
            None => "nothing stands out".to_owned(),
            Some(names) => format!("no warning; {names}"),
        },
    }
}

/// What a step takes without the cause of the finding, by the replay, where that saves time.
fn without_it(done: &Diagnosis, finding: &Finding) -> String {
    let Some(saving) = finding.saving else { return String::new() };
    // Findings that save time come first, each after those above it.
    let above = done.findings.iter().take_while(|of| !std::ptr::eq(*of, finding)).count();
    let is_any = |kind| done.findings.iter().take(above + 1).any(|of| of.saving_kind == kind);
    let kind = [SavingKind::Ceiling, SavingKind::Estimate].into_iter().find(|kind| is_any(*kind));
    let at_least = match kind {
        Some(SavingKind::Ceiling) => "at least ",
        kind => kind.map_or("", SavingKind::words),
    };
    let after = show(saving.after);
    if above > 0 {
        return format!("; without what findings 1 to {} name, a step takes {at_least}{after} ms", above + 1);
    }
    let (at_most, percent, low, high) = (finding.saving_kind.words(), saving.percent, saving.low, saving.high);
    format!("; without that a step takes {at_least}{after} ms ({at_most}{percent:.0} % [{low:.0}, {high:.0}] less)")
}

/// Why rules about time can't decide: what the replay computes is not what was observed.
pub(super) fn replay_does_not_fit(done: &Diagnosis) -> String {
    let (off, most) = (done.error.abs() * 100.0, FITS * 100.0);
    format!("the replay is off by {off:.1} %, and what takes time is judged up to {most:.0} %")
}

/// How many notes there are, and of which rules; None without notes.
fn list_of_notes(notes: &[Finding]) -> Option<String> {
    match notes {
        [] => None,
        [note] => Some(format!("one note: {}", note.rule)),
        notes => {
            let rules: Vec<&str> = notes.iter().map(|note| note.rule.as_str()).collect();
            Some(format!("{} notes: {}", notes.len(), rules.join(", ")))
        }
    }
}
