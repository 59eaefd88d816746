//! The verdict on a hang of a live run, from how far each rank is.

use probe_inspect::stacks::fold::{ProcessLabel, names};
use probe_inspect::stacks::page::location;
use probe_proto::v1::HangAnswer;

use super::hang_sentences::{self, MAX_PHRASES, Tense, bytes, seconds};
use super::hang_stalls::{
    CycleWait, GroupMember, LiveStall, OperationNumbering, deadlock, oldest_pending, stalls, worst,
};

#[cfg(test)]
mod tests;

/// Finds the verdict. `stopped`: whether steps have stopped. `now_ns`: the time of the members' states (ns since 1970).
pub(crate) fn judge(members: Vec<GroupMember>, stopped: bool, now_ns: i64) -> HangAnswer {
    let mut answer = HangAnswer { unix_ns: now_ns, ..HangAnswer::default() };
    let stalls = stalls(&members);
    if !stopped {
        let with_steps = members.iter().filter_map(|member| Some((member.state.step_ago_s?, member)));
        let freshest = with_steps.min_by(|(one, _), (other, _)| one.total_cmp(other));
        answer.why = "steps go on".into();
        let validating: Vec<ProcessLabel> =
            members.iter().filter(|member| member.state.validates).map(GroupMember::owner).collect();
        answer.verdict = match freshest {
            _ if !validating.is_empty() => {
                format!("{} {}", names(&validating), if validating.len() == 1 { "validates" } else { "validate" })
            }
            Some((ago, member)) if member.state.step > 0 && member.state.step_s.is_some() => format!(
                "steps go on: {} finished step {} {} ago",
                names(&[member.owner()]),
                member.state.step - 1,
                seconds(ago)
            ),
            _ => "no rank has finished enough steps yet to say what is long".into(),
        };
    } else if let Some(cycle) = deadlock(&members, &stalls) {
        (answer.why, answer.verdict) = ("deadlock".into(), deadlock_sentence(&cycle));
        answer.collective = cycle.first().map(|wait| wait.stall.to_message(now_ns));
    } else if let Some(stall) = worst(&stalls) {
        (answer.why, answer.verdict) = stall_sentence(stall, now_ns);
        answer.collective = Some(stall.to_message(now_ns));
    } else {
        answer.why = "outside".into();
        answer.verdict = outside(&members);
    }
    for member in &members {
        let mut state = member.state.clone();
        if let Some((group, operation)) = oldest_pending(&member.groups) {
            state.operation = format!("{} {} of {}", operation.operation_type, operation.seq, group.name);
        }
        answer.ranks.push(state);
    }
    answer
}

/// The verdict on ranks that wait for each other.
fn deadlock_sentence(cycle: &[CycleWait<'_, '_>]) -> String {
    let all: Vec<ProcessLabel> = cycle.iter().map(|wait| wait.member.owner()).collect();
    let waiting = |wait: &CycleWait<'_, '_>| {
        hang_sentences::cycle_wait(Tense::Present, wait.member.owner(), &wait.stall.called(), wait.missing.owner())
    };
    let mut phrases: Vec<String> = cycle.iter().take(MAX_PHRASES).map(waiting).collect();
    phrases.extend(cycle.iter().take(MAX_PHRASES).map(|wait| whereabouts(wait.member)));
    hang_sentences::deadlock(Tense::Present, &all, &phrases)
}

/// Why the group of `stall` does not go on, and the verdict on it.
fn stall_sentence(stall: &LiveStall<'_>, now_ns: i64) -> (String, String) {
    if stall.numbering == OperationNumbering::NotCompared {
        return ("messages".into(), message_sentence(stall, now_ns));
    }
    if let Some(kinds) = stall.differing() {
        return ("different".into(), hang_sentences::different_operations(&stall.position(), stall.group, &kinds));
    }
    if stall.missing.is_empty() {
        return ("not finished".into(), not_finished(stall, now_ns));
    }
    let phrases: Vec<String> = stall.missing.iter().take(MAX_PHRASES).map(|member| whereabouts(member)).collect();
    let waited = match stall.operation {
        Some(_) => format!(" waited in it for {}", seconds(stall.waited(now_ns))),
        None => String::new(),
    };
    let verdict = format!(
        "{}: {}; {}{waited}",
        hang_sentences::not_entered(&owners(&stall.missing), &stall.called()),
        phrases.join("; "),
        hang_sentences::entered(&owners(&stall.entered))
    );
    ("not entered".into(), verdict)
}

/// The verdict on an operation that all known ranks have entered.
fn not_finished(stall: &LiveStall<'_>, now_ns: i64) -> String {
    let entered = stall.entered.len();
    let away = usize::try_from(stall.size).unwrap_or_default().saturating_sub(entered);
    let who = if away > 0 {
        format!(
            "the {entered} of its {} ranks that are known here, so that {away} of others may be missing",
            stall.size
        )
    } else {
        format!("all its {} ranks", stall.size)
    };
    format!(
        "{} for {}: {}",
        hang_sentences::not_finished(Tense::Present, &stall.called(), &who),
        seconds(stall.waited(now_ns)),
        hang_sentences::no_answer(Tense::Present)
    )
}

fn owners(members: &[&GroupMember]) -> Vec<ProcessLabel> {
    members.iter().map(|member| member.owner()).collect()
}

/// The verdict on a group with messages: in what each rank waits, and where the others are.
fn message_sentence(stall: &LiveStall<'_>, now_ns: i64) -> String {
    let waiting = |member: &&GroupMember| {
        let group = member.groups.iter().find(|group| group.name == stall.group)?;
        let operation = group.pending.first()?;
        let (who, what) = (names(&[member.owner()]), &operation.operation_type);
        let waited = now_ns.saturating_sub(operation.unix_ns).max(0) as f64 / 1e9;
        Some(format!("{who} has waited in {what} ({}) for {}", bytes(operation.bytes), seconds(waited)))
    };
    let phrases: Vec<String> = stall.entered.iter().filter_map(waiting).take(MAX_PHRASES).collect();
    let others: Vec<String> = stall.elsewhere.iter().take(MAX_PHRASES).map(|member| whereabouts(member)).collect();
    let others = if others.is_empty() { String::new() } else { format!("; {}", others.join("; ")) };
    format!(
        "on group {}: {}{others}. The group has sends or receives, which only two of its ranks count, so its numbers do not \
         show which rank is missing",
        stall.group,
        phrases.join("; ")
    )
}

/// The verdict where no rank waits in a collective: where the ranks with the oldest step are.
fn outside(members: &[GroupMember]) -> String {
    let mut oldest: Vec<&GroupMember> = members.iter().collect();
    let ago = |member: &GroupMember| member.state.step_ago_s.unwrap_or(0.0);
    oldest.sort_by(|one, other| ago(other).total_cmp(&ago(one)));
    let phrases: Vec<String> = oldest.iter().take(MAX_PHRASES).map(|member| whereabouts(member)).collect();
    let ago = oldest.first().map_or(0.0, |member| ago(member));
    format!("no step for {}, and no collective is waited for: {}", seconds(ago), phrases.join("; "))
}

/// Where a rank is: "rank 1 is in load (data.py:31), waiting: read".
fn whereabouts(member: &GroupMember) -> String {
    let state = &member.state;
    let who = names(&[member.owner()]);
    let Some(frame) = &state.frame else {
        let why = if state.problem.is_empty() { "it runs no Python of yours" } else { &state.problem };
        return format!("where {who} is, is not known ({why})");
    };
    let mut text = format!("{who} is in {} ({})", frame.function, location(frame));
    if state.gil {
        text.push_str(" and holds the GIL");
    }
    if !state.waits_for.is_empty() {
        text.push_str(", waiting: ");
        text.push_str(&state.waits_for);
    } else if state.running {
        text.push_str(", running");
    }
    text
}
