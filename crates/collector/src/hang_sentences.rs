//! The sentences of a verdict on a hang. The verdict on a live run and the one on a run that has ended say the same, in
//! another tense.

use probe_inspect::stacks::fold::{ProcessLabel, names};

/// Ranks of which a verdict says where they are.
pub const MAX_PHRASES: usize = 4;

/// Whether ranks wait, or waited when the run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tense {
    Present,
    Past,
}

/// An operation: "all_reduce (number 5 of group 2, Byte [8])". `position` is its number, as "number 5"; `about` is its size or
/// its tensors, and may be empty.
pub fn operation_name(operation_type: &str, position: &str, group: &str, about: &str) -> String {
    let separator = if about.is_empty() { "" } else { ", " };
    format!("{operation_type} ({position} of group {group}{separator}{about})")
}

/// Ranks do different things under one number; `kinds` are the operations with their ranks.
pub fn different_operations(position: &str, group: &str, kinds: &[(String, Vec<ProcessLabel>)]) -> String {
    let each: Vec<String> = kinds.iter().map(|(what, ranks)| format!("{} in {what}", names(ranks))).collect();
    format!("ranks are in different operations as {position} of group {group}: {}", each.join(", "))
}

/// "rank 2 has not entered all_reduce (…)".
pub fn not_entered(missing: &[ProcessLabel], operation: &str) -> String {
    format!("{} not entered {operation}", entered(missing))
}

/// "ranks 0, 1 have", which ends a sentence about what others have not entered.
pub fn entered(ranks: &[ProcessLabel]) -> String {
    format!("{} {}", names(ranks), if ranks.len() == 1 { "has" } else { "have" })
}

/// "all_reduce (…) was entered by all its 3 ranks and has not finished"; `who` names those who entered it.
pub fn not_finished(tense: Tense, operation: &str, who: &str) -> String {
    let has = if tense == Tense::Present { "has" } else { "had" };
    format!("{operation} was entered by {who} and {has} not finished")
}

/// What keeps an operation from finishing that all ranks have entered.
pub fn no_answer(tense: Tense) -> &'static str {
    match tense {
        Tense::Present => "a link, a device or a peer does not answer",
        Tense::Past => "a link, a device or a peer did not answer",
    }
}

/// Ranks wait for each other; `phrases` say how ([`cycle_wait`]), and where they are.
pub fn deadlock(tense: Tense, ranks: &[ProcessLabel], phrases: &[String]) -> String {
    let wait = if tense == Tense::Present { "wait" } else { "waited" };
    format!(
        "{} {wait} for each other, as ranks do that use groups in different orders: {}",
        names(ranks),
        phrases.join("; ")
    )
}

/// In which operation a rank of a deadlock waits for the next one.
pub fn cycle_wait(tense: Tense, rank: ProcessLabel, operation: &str, missing: ProcessLabel) -> String {
    let waits = if tense == Tense::Present { " waits" } else { "" };
    format!("{}{waits} in {operation}, which {} has not entered", names(&[rank]), names(&[missing]))
}

/// A duration: "14.2 s", "3 min".
pub fn seconds(seconds: f64) -> String {
    if seconds < 180.0 { format!("{seconds:.1} s") } else { format!("{:.0} min", seconds / 60.0) }
}

/// A size: "256 B", "1.5 MiB".
pub fn bytes(bytes: i64) -> String {
    match bytes {
        ..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        _ => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
    }
}
