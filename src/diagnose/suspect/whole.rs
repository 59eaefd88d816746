//! Candidates that concern the whole step: recording itself, and the device.

use std::collections::BTreeSet;

use super::super::diagnosis::Diagnosis;
use super::super::rows::ask;
use super::reason::{Answer, Reason, named, plain, sentence};
use probe_client::Client;
use probe_common::error::Result;

const RECORDING: [&str; 6] = ["recording", "probe", "overhead", "profiling", "agent", "monitoring"];
const DEVICE: [&str; 5] = ["gpu", "gpu utilization", "utilization", "cuda", "device"];

pub(super) async fn look(
    client: &mut Client,
    done: &Diagnosis,
    name: &str,
    known: &mut BTreeSet<String>,
) -> Result<Option<Reason>> {
    known.extend(RECORDING.iter().chain(&DEVICE).map(|word| (*word).to_owned()));
    let asked = plain(name);
    let is = |words: &[&str]| words.iter().any(|word| plain(word) == asked);
    if is(&RECORDING) {
        return Ok(Some(recording(done)));
    }
    if is(&DEVICE) { device(client, done).await.map(Some) } else { Ok(None) }
}

fn recording(done: &Diagnosis) -> Reason {
    let Some(of) = done.recording else {
        let why = "its cost is not known: probe.overhead has no row of these processes yet";
        return Reason::of("recording", "recording", Answer::NotDecided, vec![why.into()]);
    };
    let answer = if of.is_too_much() { Answer::Yes } else { Answer::No };
    Reason::of("recording", "recording", answer, vec![of.why()])
}

/// Utilization only says that some kernel ran. Whether the host keeps the device waiting is in the findings.
async fn device(client: &mut Client, done: &Diagnosis) -> Result<Reason> {
    let sql = "SELECT median(utilization) AS utilization, COUNT(utilization) AS count FROM gpu.metrics";
    let rows = ask(client, sql).await?;
    let Some(utilization) = rows.number("utilization", 0).filter(|_| rows.int("count", 0) > Some(0)) else {
        let why = "no GPU was measured in this run (gpu.metrics)";
        return Ok(Reason::of("device", "gpu", Answer::NotDecided, vec![why.into()]));
    };
    let mut why = vec![format!(
        "its utilization is {utilization:.0} %: in that share of time some kernel ran, which says nothing of how much of it \
         was used, nor of what a step waits for"
    )];
    // Waits for batches and other ranks, and time between the parts, are time of the host.
    let on_host = |part: usize| !matches!(super::super::steps::PARTS[part], "forward" | "backward" | "optimizer");
    let found = named(done, |of| of.reductions.iter().any(|reduction| on_host(reduction.part)));
    let (answer, finding) = match found {
        Some((number, cause)) => {
            why.push(sentence(number, cause));
            (Answer::No, Some(number))
        }
        None => (Answer::NotDecided, None),
    };
    Ok(Reason { finding, ..Reason::of("device", "gpu", answer, why) })
}
