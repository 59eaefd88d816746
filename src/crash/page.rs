//! The account as a page for people: a sentence, and a paragraph for ranks that ended alike.

use std::fmt::Write;

use probe_inspect::stacks::fold::{ProcessLabel, names};
use probe_inspect::stacks::page::local_time;
use probe_proto::agent_connection::AgentConnection;
use unicode_width::UnicodeWidthStr;

use super::account::{CrashAccount, CrashedProcess, MAX_ACCOUNTS, MemoryReadings, RaisedException};
use super::amounts::{bytes, duration, megabytes, significant};

/// Width of the label before a fact.
const LABEL: usize = 13;
/// Lines that are shown of the end of a traceback.
const MAX_LINES: usize = 40;

/// The whole page for the run or process called `name`, in lines of at most `width` if that is known.
pub(crate) fn page(crash: &CrashAccount, name: &str, width: Option<usize>) -> String {
    let mut page = CrashPage { text: String::new(), width };
    let groups = groups(&crash.accounts);
    page.paragraph("", &format!("{name}: {}", headline(crash, &groups)));
    if let Some(sentence) = &crash.collectives {
        page.text.push('\n');
        page.paragraph("", &format!("In collectives: {sentence}."));
    }
    for group in &groups {
        page.account(group);
    }
    if crash.accounts.len() > MAX_ACCOUNTS {
        let more = crash.accounts.len() - MAX_ACCOUNTS;
        page.text.push('\n');
        page.paragraph("", &format!("Of the last {more} only how they ended was asked."));
    }
    page.text
}

/// Groups of like accounts, in the order in which the first of each group ended.
fn groups(accounts: &[CrashedProcess]) -> Vec<Vec<&CrashedProcess>> {
    let mut groups: Vec<Vec<&CrashedProcess>> = Vec::new();
    for account in accounts {
        match groups.iter_mut().find(|group| group[0].is_like(account)) {
            Some(group) => group.push(account),
            None => groups.push(vec![account]),
        }
    }
    groups
}

fn owners(accounts: &[&CrashedProcess]) -> String {
    let mut owners: Vec<ProcessLabel> = accounts
        .iter()
        .map(|account| match account.rank.and_then(|rank| i32::try_from(rank).ok()) {
            Some(rank) => ProcessLabel::Rank(rank),
            None => ProcessLabel::Pid(u32::try_from(account.pid).unwrap_or_default()),
        })
        .collect();
    owners.sort_unstable();
    names(&owners)
}

fn headline(crash: &CrashAccount, groups: &[Vec<&CrashedProcess>]) -> String {
    let Some(first) = groups.first() else {
        let others = crash.well - crash.live;
        return match (crash.live, others) {
            (0, 0) => "no process has connected, so none crashed".into(),
            (live, 0) => format!("nothing crashed; {} live", are(live)),
            (0, ended) => {
                format!("nothing crashed; {} ended well", are(ended).trim_end_matches(" is").trim_end_matches(" are"))
            }
            (live, ended) => format!("nothing crashed; {} live, and {ended} ended well", are(live)),
        };
    };
    // The process that ended first says most: the others may have been ended because of it.
    let how = first[0].in_words();
    let how = if first.len() > 1 { how.replacen("was ", "were ", 1) } else { how };
    let mut text = format!("{} {how}", owners(first));
    if let Some(raised) = first[0].exception().filter(|raised| raised.uncaught && raised.main) {
        let _ = match first[0].signal {
            None => write!(text, " by {}", raised.exception),
            // The interpreter was shutting down because of the exception when the signal came, or ended itself by it.
            Some(_) => write!(text, ", with an uncaught {},", raised.exception),
        };
    }
    let _ = write!(text, " after {} steps", first[0].steps);
    let rest: usize = groups.iter().skip(1).map(Vec::len).sum();
    if rest > 0 {
        let _ = write!(text, "; {rest} more ended badly after that");
    }
    if crash.command_status == Some(0) {
        text += "; the command went on and ended with status 0";
    }
    text
}

fn are(count: usize) -> String {
    if count == 1 { "1 process is".into() } else { format!("{count} processes are") }
}

struct CrashPage {
    text: String,
    width: Option<usize>,
}

impl CrashPage {
    fn account(&mut self, group: &[&CrashedProcess]) {
        let account = group[0];
        let whose = match (group.len(), account.rank) {
            (1, None) => format!("process {} on {}", account.pid, account.host),
            (1, Some(rank)) => format!("rank {rank}: process {} on {}", account.pid, account.host),
            _ => {
                let all = owners(group);
                format!("{all}, all alike; the figures are of the first: process {} on {}", account.pid, account.host)
            }
        };
        let _ = writeln!(self.text);
        self.paragraph("", &whose);
        self.ending(account);
        if let Some(interval) = &account.module {
            let what = format!("{} ({}), in step {}", interval.module, interval.stage, interval.step);
            let inside = if interval.inside { ": entered and not left" } else { "" };
            self.fact("last module", &format!("{what}{inside}"));
        }
        if let Some(last) = &account.collective {
            let what = format!("{} {} of group {}", last.operation_type, last.seq, last.group);
            let status = if last.status == "pending" { "has not finished".into() } else { last.status.clone() };
            self.fact("collective", &format!("{what}, {}, in step {}: {status}", bytes(last.bytes), last.step));
        }
        for (index, memory) in account.memory.iter().enumerate() {
            self.fact(if index == 0 { "memory" } else { "" }, &trend(memory));
        }
        if let Some(kept) = &account.kept {
            let listed = |modules: &[(String, f64)], sign| {
                let each = modules.iter().map(|(module, size)| format!("{module} {sign}{}", megabytes(*size)));
                each.collect::<Vec<_>>().join(", ")
            };
            if !kept.most.is_empty() {
                self.fact("kept by", &format!("{} (step {})", listed(&kept.most, ""), kept.step));
            }
            if let Some(since) = kept.since.filter(|_| !kept.grew.is_empty()) {
                let grew = listed(&kept.grew, "+");
                self.fact("grew", &format!("{grew} (step {}, since step {since})", kept.step));
            }
        }
        if !account.metrics.is_empty() {
            let values = account.metrics.iter().map(|(name, value, step)| {
                format!("{name} {} (step {step})", value.map_or_else(|| "NULL".into(), significant))
            });
            self.fact("metrics", &values.collect::<Vec<_>>().join(", "));
        }
        if !account.spans.is_empty() {
            let spans =
                account.spans.iter().map(|(name, took, step)| format!("{name} {} (step {step})", duration(*took)));
            self.fact("spans", &spans.collect::<Vec<_>>().join(", "));
        }
        for (at, message) in &account.events {
            self.fact("noticed", &format!("{}: {message}", local_time(*at)));
        }
        self.ended_threads(account);
        self.raised(account);
        self.stack(account);
    }

    /// How the process ended, and when its last step was.
    fn ending(&mut self, account: &CrashedProcess) {
        let end = account.ended.unwrap_or(account.last_seen);
        let mut how = vec![match (&account.signal, account.exit_status) {
            (Some(signal), _) => signal.clone(),
            (None, Some(status)) => format!("exit status {status}"),
            (None, None) => "not known how".into(),
        }];
        if account.state == AgentConnection::Lost.as_str() {
            how.push("without a goodbye".into());
        }
        let when = if account.ended.is_some() { "" } else { " (when anything last came from it)" };
        self.fact("ended", &format!("{}{when}: {}", local_time(end), how.join(", ")));
        if let Some(cause) = &account.cause {
            self.fact("cause", cause);
        }
        let ago = account.last_step.map(|at| (end.saturating_sub(at)) as f64 / 1e9).filter(|ago| *ago >= 0.0);
        let ago = ago.map(|ago| format!("; the last was over {} before", duration(ago))).unwrap_or_default();
        self.fact("steps", &format!("{}{ago}", account.steps));
    }

    fn raised(&mut self, account: &CrashedProcess) {
        let Some(raised) = account.exception() else { return };
        let summary = summary(raised);
        let what = match (raised.uncaught, raised.main) {
            (true, true) => "uncaught",
            (true, false) => "uncaught in a thread",
            (false, _) => "met in a module's call",
        };
        let within = raised.module.as_ref().map(|module| match &raised.stage {
            Some(stage) => format!(", in {module} ({stage})"),
            None => format!(", in {module}"),
        });
        let location = raised.location.as_ref().map(|location| format!(", at {location}")).unwrap_or_default();
        self.fact(
            "exception",
            &format!("{summary} ({what}, {}{}{location})", local_time(raised.ts), within.unwrap_or_default()),
        );
        if let Some(memory) = &raised.memory {
            let first: Vec<&str> = memory.lines().take(8).collect();
            self.fact("", &first.join(", "));
        }
        let lines: Vec<&str> = raised.traceback.trim_end().lines().collect();
        let left_out = lines.len().saturating_sub(MAX_LINES);
        let _ = writeln!(self.text);
        if left_out > 0 {
            self.line(&format!("({left_out} lines are left out; python.exceptions has them)"));
        }
        for line in &lines[left_out..] {
            self.line(line);
        }
    }

    /// Threads that an exception ended. The rows of python.exceptions have their tracebacks.
    fn ended_threads(&mut self, account: &CrashedProcess) {
        for raised in account.ended_threads() {
            let name = raised.thread.as_ref().map(|name| format!(" {name}")).unwrap_or_default();
            let location = raised.location.as_ref().map(|location| format!(", at {location}")).unwrap_or_default();
            let end = account.ended.unwrap_or(account.last_seen);
            let ago = duration(end.saturating_sub(raised.ts).max(0) as f64 / 1e9);
            self.fact("thread", &format!("{} ended thread{name} {ago} before{location}", summary(raised)));
        }
    }

    fn stack(&mut self, account: &CrashedProcess) {
        let Some(taken) = account.captured else { return };
        let _ = writeln!(self.text);
        self.line(&format!("Main thread at {}, innermost first:", local_time(taken)));
        for frame in &account.stack {
            self.line(&format!("  {frame}"));
        }
    }

    /// A line of code or of a stack. A line that is too long is wrapped, not cut.
    fn line(&mut self, line: &str) {
        self.paragraph("  ", line);
    }

    fn fact(&mut self, label: &str, fact: &str) {
        self.paragraph(&format!("  {label:LABEL$}"), fact);
    }

    /// Wraps words into lines. All lines but the first are indented by the width of `before`.
    fn paragraph(&mut self, before: &str, words: &str) {
        let indent = before.width();
        let room = self.width.map_or(usize::MAX, |width| width.saturating_sub(indent).max(20));
        let mut line = String::new();
        let mut lines = Vec::new();
        for word in words.split_inclusive(' ') {
            if !line.is_empty() && line.width() + word.trim_end().width() > room {
                lines.push(std::mem::take(&mut line));
            }
            line.push_str(word);
        }
        lines.push(line);
        for (index, line) in lines.iter().enumerate() {
            let before = if index == 0 { before.to_owned() } else { " ".repeat(indent) };
            let _ = writeln!(self.text, "{}", format!("{before}{line}").trim_end());
        }
    }
}

/// The memory of a device in words: "cpu 812 MB at first, 1.20 GB a minute before the end, 1.41 GB at the end, at most 1.50 GB".
fn trend(memory: &MemoryReadings) -> String {
    let amount = |value: Option<f64>, words: &str| value.map(|value| format!("{} {words}", megabytes(value)));
    let at_most = memory.peak.map(|peak| format!("at most {}", megabytes(peak)));
    let parts = [
        amount(memory.first, "at first"),
        amount(memory.before, "a minute before the last"),
        amount(memory.last, "at last"),
        at_most,
    ];
    format!("{}: {}", memory.device, parts.into_iter().flatten().collect::<Vec<_>>().join(", "))
}

/// "ValueError: corrupt shard", with the first line of the message.
fn summary(raised: &RaisedException) -> String {
    match raised.message.lines().next().unwrap_or_default() {
        "" => raised.exception.clone(),
        message => format!("{}: {message}", raised.exception),
    }
}
