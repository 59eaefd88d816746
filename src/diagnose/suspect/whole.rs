//! Candidates that concern the whole step: recording itself, and the device.

use std::collections::BTreeSet;

use super::super::diagnosis::Diagnosis;
use super::super::rows::ask;
use super::candidate::{CauseVerdict, SuspectCandidate, first_finding, normalized_name, sentence};
use probe_client::Client;
use probe_common::error::Result;

const RECORDING: [&str; 6] = ["recording", "probe", "overhead", "profiling", "agent", "monitoring"];
const DEVICE: [&str; 5] = ["gpu", "gpu utilization", "utilization", "cuda", "device"];

pub(super) async fn judge(
    client: &mut Client,
    done: &Diagnosis,
    name: &str,
    known: &mut BTreeSet<String>,
) -> Result<Option<SuspectCandidate>> {
    known.extend(RECORDING.iter().chain(&DEVICE).map(|word| (*word).to_owned()));
    let asked = normalized_name(name);
    let is = |words: &[&str]| words.iter().any(|word| normalized_name(word) == asked);
    if is(&RECORDING) {
        return Ok(Some(recording(done)));
    }
    if is(&DEVICE) { device(client, done).await.map(Some) } else { Ok(None) }
}

fn recording(done: &Diagnosis) -> SuspectCandidate {
    let Some(of) = done.recording else {
        let why = "its cost is not known: probe.overhead has no row of these processes yet";
        return SuspectCandidate::of("recording", "recording", CauseVerdict::NotDecided, vec![why.into()]);
    };
    let answer = if of.is_too_much() { CauseVerdict::Yes } else { CauseVerdict::No };
    SuspectCandidate::of("recording", "recording", answer, vec![of.why()])
}

/// The share of a step in which a device has work at least, from which on it is the device that steps wait for.
const DEVICE_BOUND: f64 = 0.9;

/// Utilization only says that some kernel ran. Whether the host keeps the device waiting is in the findings, and in the share of a
/// step in which the device has work.
async fn device(client: &mut Client, done: &Diagnosis) -> Result<SuspectCandidate> {
    let sql = "SELECT median(utilization) AS utilization, COUNT(utilization) AS count FROM gpu.metrics";
    let rows = ask(client, sql).await?;
    let utilization = rows.number("utilization", 0).filter(|_| rows.int("count", 0) > Some(0));
    let busy = done.steps.device_busy_share();
    if utilization.is_none() && busy.is_none() {
        let why = "no GPU was measured in this run (gpu.metrics)";
        return Ok(SuspectCandidate::of("device", "gpu", CauseVerdict::NotDecided, vec![why.into()]));
    }
    let mut why = Vec::new();
    why.extend(busy.map(|share| {
        let (has, left) = (100.0 * share, 100.0 * (1.0 - share));
        format!("it has work in at least {has:.0} % of a step, so that less time of the host saves {left:.0} % at most")
    }));
    why.extend(utilization.map(|utilization| {
        format!(
            "its utilization is {utilization:.0} %: in that share of time some kernel ran, which does not show how much of \
             it was used, nor what a step waits for"
        )
    }));
    // Waits for batches and other ranks, and time between the parts, are time of the host.
    let on_host = |part: usize| !matches!(super::super::steps::PARTS[part], "forward" | "backward" | "optimizer");
    let found = first_finding(done, |of| of.reductions.iter().any(|reduction| on_host(reduction.part)));
    let (answer, finding) = match found {
        Some((number, cause)) => {
            why.push(sentence(number, cause));
            (CauseVerdict::No, Some(number))
        }
        None if busy.is_some_and(|share| share >= DEVICE_BOUND) => (CauseVerdict::Yes, None),
        None => (CauseVerdict::NotDecided, None),
    };
    Ok(SuspectCandidate { finding, ..SuspectCandidate::of("device", "gpu", answer, why) })
}
