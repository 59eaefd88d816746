//! The words of a verdict on facts.

use std::fmt::Write;

use probe_collector::hang_sentences::{self, Tense, different_operations, not_finished, operation_name};
use probe_inspect::stacks::fold::{ProcessLabel, names};

use super::facts::{FactSource, HangFacts};
use super::stall::{RecordedStall, StallReason};

/// The operation of a stall: "all_reduce (number 5 of group 2, Byte [8])".
pub(super) fn called(stall: &RecordedStall<'_>) -> String {
    let operation = stall.operation;
    operation_name(&operation.operation_type, &position(stall), &stall.group(), &operation.tensors)
}

fn position(stall: &RecordedStall<'_>) -> String {
    format!("number {}", stall.operation.seq)
}

/// Why a group did not go on.
pub(super) fn stall(stall: &RecordedStall<'_>) -> String {
    let (missing, entered, called) = (owners(&stall.missing), owners(&stall.entered), called(stall));
    let not_finished = |who: &str| not_finished(Tense::Past, &called, who);
    let unknown = unknown(stall);
    match stall.why {
        StallReason::Different => {
            let kinds: Vec<_> = stall.kinds.iter().map(|(what, ranks)| (what.clone(), owners(ranks))).collect();
            format!("{}{unknown}", different_operations(&position(stall), &stall.group(), &kinds))
        }
        StallReason::NotEntered => {
            let not_entered = hang_sentences::not_entered(&missing, &called);
            format!("{not_entered}; {}{unknown}", hang_sentences::entered(&entered))
        }
        StallReason::NotFinished if !unknown.is_empty() => {
            format!("{}{unknown}, and any of them may be missing", not_finished(&names(&entered)))
        }
        StallReason::NotFinished if !stall.listed => {
            let unlisted = match stall.source {
                FactSource::Dumps => "no dump says which ranks the group has",
                FactSource::Rows => "not all ranks of the group were recorded",
            };
            format!("{}; {unlisted}, so another may be missing", not_finished(&names(&entered)))
        }
        StallReason::NotFinished => {
            let who = format!("{}, all ranks of the group,", names(&entered));
            format!("{}: {}", not_finished(&who), hang_sentences::no_answer(Tense::Past))
        }
    }
}

/// The ranks of the group of which nothing, or not all, is known; begins with "; " unless it is empty.
fn unknown(stall: &RecordedStall<'_>) -> String {
    let mut text = match &stall.unknown[..] {
        [] => String::new(),
        some if stall.source == FactSource::Dumps => format!("; of {} there is no dump", rank_names(some)),
        some => format!("; of {} nothing is recorded", rank_names(some)),
    };
    if !stall.perhaps.is_empty() {
        let ranks = rank_names(&stall.perhaps);
        let _ = match stall.source {
            FactSource::Dumps => write!(text, "; of {ranks} there is only a part of the dump"),
            FactSource::Rows => write!(text, "; of {ranks} rows were lost"),
        };
    }
    text
}

/// The verdict where no group is known that did not go on.
pub(super) fn no_stall(facts: &HangFacts) -> &'static str {
    match (facts.source, facts.operations) {
        (FactSource::Dumps, 0) => "the dumps contain no operations, so they do not show whether a rank was waiting",
        (FactSource::Dumps, _) => "no rank waited in a collective when its dump was made",
        (FactSource::Rows, 0) => "no collective was recorded, so it is not known whether a rank was waiting",
        (FactSource::Rows, _) => "no rank waited in a collective when its recording ended",
    }
}

/// Remarks that make the verdict less certain.
pub(super) fn remarks(facts: &HangFacts) -> Vec<String> {
    let mut remarks = Vec::new();
    let twice: Vec<i32> = facts.ranks.iter().filter(|(_, dumps)| **dumps > 1).map(|(rank, _)| *rank).collect();
    if !twice.is_empty() {
        remarks.push(format!("{} left more than one dump, and they are taken together", rank_names(&twice)));
    }
    if !facts.partial.is_empty() {
        let partial: Vec<i32> = facts.partial.iter().copied().collect();
        let (dump, was) = if partial.len() == 1 { ("dump", "was") } else { ("dumps", "were") };
        let ranks = rank_names(&partial);
        remarks.push(match facts.source {
            FactSource::Dumps => format!(
                "the {dump} of {ranks} {was} read only in part (python.captures says why), and what comes after that is not known"
            ),
            FactSource::Rows => format!("rows of {ranks} were lost (probe.drops says why), and what was in them is not known"),
        });
    }
    if facts.without_rank > 0 {
        remarks.push(format!("{} dumps are left out of this: the end of their names has no rank", facts.without_rank));
    }
    if facts.point_to_point > 0 {
        remarks.push(format!("{} sends and receives were not finished either", facts.point_to_point));
    }
    remarks
}

/// Ranks as the names of processes.
pub(super) fn owners(ranks: &[i32]) -> Vec<ProcessLabel> {
    ranks.iter().map(|rank| ProcessLabel::Rank(*rank)).collect()
}

fn rank_names(ranks: &[i32]) -> String {
    names(&owners(ranks))
}
