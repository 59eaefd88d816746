//! A rank that is suspected of being slow.

use super::super::diagnosis::Diagnosis;
use super::super::finding::show;
use super::super::steps::{COMM, seconds};
use super::candidate::{CauseVerdict, SuspectCandidate, first_finding, normalized_name, sentence};
use crate::block_bootstrap::median;

pub(super) fn judge(done: &Diagnosis, name: &str) -> Option<SuspectCandidate> {
    let asked: i64 = normalized_name(name).strip_prefix("rank")?.parse().ok()?;
    let steps = &done.steps;
    let process = steps.process_of(Some(asked))?;
    let own = |at: usize, step: usize| seconds(steps.duration(at, step) - steps.parts[at][step][COMM]) * 1000.0;
    let usual = |at: usize| median((0..steps.count()).map(|step| own(at, step)).collect()).unwrap_or(0.0);
    let others: Vec<usize> = (0..steps.processes.len()).filter(|at| *at != process).collect();
    let Some(of_others) = median(others.iter().map(|at| usual(*at)).collect()) else {
        return Some(SuspectCandidate::of(
            "rank",
            &asked.to_string(),
            CauseVerdict::No,
            vec!["there is no other rank that it could hold up".into()],
        ));
    };
    let of_it = usual(process);
    let last = |step: &usize| others.iter().all(|at| own(process, *step) > own(*at, *step));
    let times = (0..steps.count()).filter(last).count();
    let mut why = vec![format!(
        "its own work takes {} ms in the median step, that of the others {} ms ({:+.0} %); it was the last in {:.0} % of \
         the steps",
        show(of_it),
        show(of_others),
        if of_others > 0.0 { (of_it / of_others - 1.0) * 100.0 } else { 0.0 },
        times as f64 / steps.count().max(1) as f64 * 100.0
    )];
    let found = first_finding(done, |of| !of.everywhere && of.ranks.contains(&asked));
    let (answer, finding) = match found {
        Some((number, cause)) => {
            why.push(sentence(number, cause));
            (CauseVerdict::Yes, Some(number))
        }
        None => {
            why.push(
                "ranks differ a little in every run: one that is slow takes longer in nearly all of the steps".into(),
            );
            (CauseVerdict::No, None)
        }
    };
    Some(SuspectCandidate { finding, ..SuspectCandidate::of("rank", &asked.to_string(), answer, why) })
}
