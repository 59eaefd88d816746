//! Judges one suspected cause (`--suspect NAME`): a rule, a part of a step, a rank, modules by name or type, operations, the
//! device, or recording itself. The answer is yes, no or not decided, with reasons.
//!
//! A large share is no cause here either. A candidate that no finding names is no cause if it could save less than a finding
//! does, or less than half of a step; else it is not decided.

mod candidate;
mod module;
mod operation;
mod page;
mod part;
mod rank;
mod rules;
mod whole;

use std::collections::BTreeSet;

use self::candidate::{CauseVerdict, SuspectCandidate};
pub(crate) use self::page::SuspectAnswer;
use super::diagnosis::Diagnosis;
use super::rule::Rule;
use super::rule_files;
use super::steps::PARTS;
use probe_client::Client;
use probe_common::error::{Error, Result};
use probe_query::nearest;

/// Judges everything that `name` may mean.
///
/// # Errors
/// The name means nothing in this run; the errors of the queries.
pub(crate) async fn suspect<'a>(
    client: &mut Client,
    done: &'a Diagnosis,
    own: &[Rule],
    name: &str,
) -> Result<SuspectAnswer<'a>> {
    let mut known = BTreeSet::new();
    let all = [rule_files::built_in()?, own.to_vec()].concat();
    let mut reasons = rules::judge(done, &all, name, &mut known);
    // "leak" is a cause, and not a part of LeakyReLU.
    let in_parts = reasons.is_empty();
    let of_steps = part::judge(done, name, &mut known).into_iter().chain(rank::judge(done, name));
    reasons.extend(of_steps.map(|reason| match done.steps.captures {
        0 => reason,
        _ => {
            let why = "no agent recorded steps of this run, of which it could be a share";
            SuspectCandidate::of(reason.kind, &reason.name, CauseVerdict::NotDecided, vec![why.into()])
        }
    }));
    reasons.extend(operation::judge(client, done, name, &mut known).await?);
    reasons.extend(module::judge(client, done, name, in_parts, &mut known).await?);
    reasons.extend(whole::judge(client, done, name, &mut known).await?);
    if reasons.is_empty() {
        return Err(unknown(name, &known, done));
    }
    Ok(SuspectAnswer { done, asked: name.to_owned(), reasons })
}

fn unknown(name: &str, known: &BTreeSet<String>, done: &Diagnosis) -> Error {
    let meant = nearest(name, known.iter().map(String::as_str));
    let meant = meant.map(|near| format!("did you mean '{near}'? ")).unwrap_or_default();
    let modules = if known.iter().any(|name| name.starts_with("module ")) { "" } else { " (none is recorded)" };
    let ranks = done.steps.processes.iter().filter_map(|of| of.rank).max().map(|last| format!("rank 0..{last}, "));
    Error::usage(format!("nothing in this run is called '{name}'")).hint(format!(
        "{meant}It may be a rule (probe diagnose lists them), a part of a step ({}), {}a module or its type{modules}, an \
         operation (copy_, item, all_reduce), gpu, or recording",
        PARTS[..8].join(", "),
        ranks.unwrap_or_default(),
    ))
}
