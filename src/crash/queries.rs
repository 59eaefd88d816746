//! The queries of an account.

use probe_client::Client;
use probe_common::error::Result;
use probe_proto::agent_connection::AgentConnection;

use super::account::{
    CrashAccount, CrashedProcess, LastCollective, LastInterval, MAX_ACCOUNTS, MemoryReadings, RaisedException,
};
use super::kept;
use crate::hang;
use crate::small_rows::rows;

/// The minute before the last measurement (ns).
const RECENT: i64 = 60_000_000_000;
/// Stacks that are older than this when a process ended say nothing of its end (ns).
const STALE: i64 = 600_000_000_000;

/// Asks for the accounts of all processes that ended badly.
///
/// # Errors
/// The queries'.
pub(crate) async fn ask(client: &mut Client) -> Result<CrashAccount> {
    let mut crash = CrashAccount::default();
    let sql = "SELECT host, pid, rank, state, ended, exit_status, signal, cause, last_seen, step FROM probe.agents \
               ORDER BY COALESCE(ended, last_seen), rank, pid";
    for row in rows(client, sql).await? {
        let account = CrashedProcess {
            host: row.text(0).unwrap_or_default(),
            pid: row.int(1).unwrap_or_default(),
            rank: row.int(2),
            state: row.text(3).unwrap_or_default(),
            ended: row.int(4),
            exit_status: row.int(5),
            signal: row.text(6),
            cause: row.text(7),
            last_seen: row.int(8).unwrap_or_default(),
            steps: row.int(9).unwrap_or_default(),
            ..CrashedProcess::default()
        };
        let unknown = account.exit_status.is_none() && account.signal.is_none();
        // A process that said goodbye and of which no more is known counts as ended well.
        let well = account.exit_status == Some(0) || unknown && account.state != AgentConnection::Lost.as_str();
        if well {
            crash.well += 1;
            crash.live += usize::from(account.state == AgentConnection::Live.as_str());
        } else {
            crash.accounts.push(account);
        }
    }
    if !crash.accounts.is_empty() {
        let sql = "SELECT CAST(details ->> 'exit_status' AS BIGINT) FROM probe.events WHERE kind = 'command end' \
                   ORDER BY ts DESC LIMIT 1";
        crash.command_status = rows(client, sql).await?.first().and_then(|row| row.int(0));
    }
    if let Some(first) = crash.accounts.first() {
        crash.collectives = hang::sentence(client, first.ended.unwrap_or(first.last_seen)).await?;
    }
    for account in crash.accounts.iter_mut().take(MAX_ACCOUNTS) {
        fill(client, account).await?;
    }
    Ok(crash)
}

/// Fills an account from the rows of its process.
async fn fill(client: &mut Client, account: &mut CrashedProcess) -> Result<()> {
    // The condition for rows of this process.
    let process = format!("pid = {} AND host = '{}'", account.pid, account.host.replace('\'', "''"));
    let newest = |table: &str| format!("{process} AND step >= (SELECT MAX(step) FROM {table} WHERE {process})");

    let sql = format!(
        "SELECT CAST(ts AS BIGINT) + CAST(duration * 1e9 AS BIGINT), step FROM python.steps WHERE {} ORDER BY ts DESC LIMIT 1",
        newest("python.steps")
    );
    if let Some(row) = rows(client, &sql).await?.first() {
        account.last_step = row.int(0);
        // Its last report may be older than its last rows.
        account.steps = account.steps.max(row.int(1).map_or(0, |step| step + 1));
    }

    let sql = format!(
        "SELECT COALESCE(module, '(outside of modules)'), stage, step FROM python.torch_trace WHERE {} \
         ORDER BY ts DESC, depth DESC LIMIT 1",
        newest("python.torch_trace")
    );
    let recorded = rows(client, &sql).await?.first().map(|row| LastInterval {
        module: row.text(0).unwrap_or_default(),
        stage: row.text(1).unwrap_or_default(),
        step: row.int(2).unwrap_or_default(),
        inside: false,
    });
    let sql = format!(
        "SELECT details FROM probe.events WHERE {process} AND kind = 'process end' AND details IS NOT NULL ORDER BY ts DESC LIMIT 1"
    );
    let details = rows(client, &sql).await?.first().and_then(|row| row.text(0));
    account.module = details.and_then(|details| inside(&details)).or(recorded);

    let sql = format!(
        "SELECT operation_type, group_name, seq, bytes, status, step FROM python.nccl_trace WHERE {process} \
         ORDER BY ts DESC LIMIT 16"
    );
    let issued = rows(client, &sql).await?;
    let pending = issued.iter().rev().find(|row| row.text(4).as_deref() == Some("pending"));
    account.collective = pending.or(issued.first()).map(|row| LastCollective {
        operation_type: row.text(0).unwrap_or_default(),
        group: row.text(1).unwrap_or_default(),
        seq: row.int(2).unwrap_or_default(),
        bytes: row.int(3).unwrap_or_default(),
        status: row.text(4).unwrap_or_default(),
        step: row.int(5).unwrap_or_default(),
    });

    account.memory = memory(client, &process).await?;

    account.kept = kept::ask(client, &process).await?;

    let sql = format!(
        "SELECT name, last_value(value ORDER BY ts), MAX(step) FROM python.metrics WHERE {process} \
         AND step > (SELECT MAX(step) - 100 FROM python.metrics WHERE {process}) GROUP BY name ORDER BY MAX(ts) DESC, name LIMIT 8"
    );
    let logged = rows(client, &sql).await?;
    account.metrics = logged.iter().filter_map(|row| Some((row.text(0)?, row.float(1), row.int(2)?))).collect();

    let sql = format!(
        "SELECT name, duration, step FROM python.spans WHERE {} ORDER BY ts DESC LIMIT 3",
        newest("python.spans")
    );
    let spans = rows(client, &sql).await?;
    account.spans = spans.iter().filter_map(|row| Some((row.text(0)?, row.float(1)?, row.int(2)?))).collect();

    account.exceptions = exceptions(client, &process).await?;
    stack(client, &process, account).await?;

    let sql = format!(
        "SELECT ts, message FROM probe.events WHERE {process} AND kind <> 'process end' AND severity <> 'info' \
         ORDER BY ts DESC LIMIT 3"
    );
    let events = rows(client, &sql).await?;
    account.events = events.iter().rev().filter_map(|row| Some((row.int(0)?, row.text(1)?))).collect();
    Ok(())
}

/// The interval that a process was in when it ended, from the details of that event: of several threads the one that entered
/// an interval last, and one of a module before one outside of modules.
fn inside(details: &str) -> Option<LastInterval> {
    let details: serde_json::Value = serde_json::from_str(details).ok()?;
    let threads = details["inside"].as_array()?;
    let innermost = threads.iter().find(|thread| thread["module"].is_string()).or(threads.first())?;
    Some(LastInterval {
        module: innermost["module"].as_str().unwrap_or("(outside of modules)").to_owned(),
        stage: innermost["stage"].as_str()?.to_owned(),
        step: innermost["step"].as_i64()?,
        inside: true,
    })
}

async fn memory(client: &mut Client, process: &str) -> Result<Vec<MemoryReadings>> {
    let sql = format!(
        "SELECT device, first_value(COALESCE(allocated, rss) ORDER BY ts), last_value(COALESCE(allocated, rss) ORDER BY ts), \
         MAX(COALESCE(max_allocated, max_rss)), CAST(MAX(ts) AS BIGINT) FROM python.memory WHERE {process} GROUP BY device ORDER BY device"
    );
    let mut devices = Vec::new();
    for row in rows(client, &sql).await? {
        let (Some(device), Some(last)) = (row.text(0), row.int(4)) else { continue };
        let sql = format!(
            "SELECT COALESCE(allocated, rss) FROM python.memory WHERE {process} AND device = '{}' \
             AND CAST(ts AS BIGINT) <= {} ORDER BY ts DESC LIMIT 1",
            device.replace('\'', "''"),
            last - RECENT
        );
        let before = rows(client, &sql).await?.first().and_then(|row| row.float(0));
        devices.push(MemoryReadings { device, first: row.float(1), before, last: row.float(2), peak: row.float(3) });
    }
    Ok(devices)
}

async fn exceptions(client: &mut Client, process: &str) -> Result<Vec<RaisedException>> {
    let columns =
        "ts, exception, message, traceback, uncaught, main, module, stage, function, file, line, memory, thread_name";
    let newest = |condition| {
        format!("(SELECT {columns} FROM python.exceptions WHERE {process}{condition} ORDER BY ts DESC LIMIT 4)")
    };
    let sql = format!("{} UNION {} ORDER BY ts DESC", newest(""), newest(" AND uncaught"));
    let newest = rows(client, &sql).await?;
    let raised = newest.iter().map(|row| {
        let file = row.text(9).zip(row.int(10)).map(|(file, line)| format!("{file}:{line}"));
        RaisedException {
            ts: row.int(0).unwrap_or_default(),
            exception: row.text(1).unwrap_or_default(),
            message: row.text(2).unwrap_or_default(),
            traceback: row.text(3).unwrap_or_default(),
            uncaught: row.flag(4),
            main: row.flag(5),
            module: row.text(6),
            stage: row.text(7),
            location: row.text(8).zip(file).map(|(function, file)| format!("{function} ({file})")),
            memory: row.text(11),
            thread: row.text(12),
        }
    });
    Ok(raised.collect())
}

/// Fills in the stack of the main thread by the newest capture, if that was near the end.
async fn stack(client: &mut Client, process: &str, account: &mut CrashedProcess) -> Result<()> {
    let sql = format!(
        "SELECT ts, function, file, line, waits_for, depth FROM python.stacks WHERE {process} AND main AND user_code \
         AND capture = (SELECT MAX(capture) FROM python.stacks WHERE {process}) ORDER BY depth LIMIT 6"
    );
    let frames = rows(client, &sql).await?;
    let taken = frames.first().and_then(|row| row.int(0));
    let end = account.ended.unwrap_or(account.last_seen);
    if taken.is_none_or(|taken| end.saturating_sub(taken) > STALE) {
        return Ok(());
    }
    account.captured = taken;
    account.stack = frames
        .iter()
        .filter_map(|row| {
            let line = row.int(3).map(|line| format!(":{line}")).unwrap_or_default();
            let waits = row.text(4).map(|waits| format!(", waiting: {waits}")).unwrap_or_default();
            Some(format!("{} ({}{line}){waits}", row.text(1)?, row.text(2)?))
        })
        .collect();
    Ok(())
}
