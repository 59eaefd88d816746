//! Reads the files of rules: the built-in ones in `rules/`, and those of a user's directory.

use std::path::Path;

use super::rule::{Rule, parse};
use probe_common::error::{Error, Result};
use probe_query::nearest;

macro_rules! embedded {
    ($($name:literal),* $(,)?) => { [$(($name, include_str!(concat!("rules/", $name, ".sql")))),*] };
}

/// The rules that are built in.
pub(crate) fn built_in() -> Result<Vec<Rule>> {
    let files = embedded![
        "barrier-in-steps",
        "broadcasts-in-steps",
        "bursts-of-batches",
        "calls-without-backward",
        "checkpoint-stalls",
        "communication-bound",
        "compiles-again",
        "copies-of-tensors",
        "cudnn-benchmark-off",
        "debug-switches",
        "denormal-in-backward",
        "denormal-numbers",
        "device-behind-others",
        "device-idle",
        "device-leak",
        "device-memory-churn",
        "device-memory-fragmented",
        "device-memory-full",
        "double-precision",
        "ended-badly",
        "exposed-communication",
        "exposed-copies",
        "float32-matmul",
        "garbage-collection",
        "gil-held-elsewhere",
        "gloo-for-gpu",
        "gpu-errors",
        "gpu-slowed-down",
        "gradient-norms-differ",
        "grows-beyond-input",
        "hangs",
        "host-bound",
        "host-leak",
        "host-memory-full",
        "inference-in-steps",
        "input-size",
        "irregular-stall",
        "loader-in-captures",
        "loader-starved",
        "loads-in-loop",
        "long-step",
        "loss-rises",
        "loss-spikes",
        "many-small-collectives",
        "many-small-operations",
        "memory-bound-modules",
        "module-slow-on-rank",
        "new-optimizer-each-step",
        "not-finite",
        "odd-sibling",
        "one-slow-worker",
        "one-thread",
        "optimizer-bound",
        "optimizer-one-by-one",
        "padding",
        "paging",
        "parameters-not-optimized",
        "periodic-stall",
        "pipeline-bubble",
        "processor-quota",
        "python-between-parts",
        "python-in-forward",
        "rank-has-more-data",
        "rank-slow",
        "rank-without-processor",
        "ranks-differ",
        "reads-of-tensors",
        "recompute-not-needed",
        "recording-too-costly",
        "reduced-each-micro-step",
        "rows-lost",
        "several-backward-passes",
        "skipped-steps",
        "slow-for-a-while",
        "slow-sampler",
        "slow-start",
        "slower-and-slower",
        "slower-collectives",
        "slower-since",
        "slower-than-reference",
        "small-batches",
        "small-operations-between-parts",
        "small-operations-in-optimizer",
        "span-between-parts",
        "stalled-collective",
        "tensor-cores-unused",
        "thread-blocked",
        "threads-beyond-cores",
        "uneven-all-to-all",
        "uneven-inputs",
        "uneven-memory",
        "uneven-stages",
        "unused-parameters",
        "validation-in-steps",
        "waits-for-a-processor",
        "waits-for-device",
        "work-between-parts",
        "workers-beyond-cores",
        "workers-leak",
        "workers-restart",
        "workers-start-slowly",
    ];
    files.into_iter().map(|(name, text)| parse(&format!("{name}.sql"), text)).collect()
}

/// Keeps the rules that are named; a name may end in *.
///
/// # Errors
/// There is no rule of a name.
pub(crate) fn only(rules: Vec<Rule>, names: &[String]) -> Result<Vec<Rule>> {
    let is = |rule: &Rule, name: &String| match name.strip_suffix('*') {
        Some(begin) => rule.name.starts_with(begin),
        None => rule.name == *name,
    };
    if let Some(unknown) = names.iter().find(|name| !rules.iter().any(|rule| is(rule, name))) {
        let known = || rules.iter().map(|rule| rule.name.as_str());
        let meant = nearest(unknown, known()).map(|near| format!("did you mean '{near}'? ")).unwrap_or_default();
        return Err(Error::usage(format!("there is no rule '{unknown}'"))
            .hint(format!("{meant}The rules are {}", known().collect::<Vec<_>>().join(", "))));
    }
    Ok(rules.into_iter().filter(|rule| names.is_empty() || names.iter().any(|name| is(rule, name))).collect())
}

/// The rules of a directory: its files that end in .sql, by name.
pub(crate) fn of_directory(directory: &Path) -> Result<Vec<Rule>> {
    let failed = |path: &Path, error: std::io::Error| Error::usage(path.display().to_string()).because(error);
    let entries = std::fs::read_dir(directory).map_err(|error| failed(directory, error))?;
    let mut paths: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.retain(|path| path.extension().is_some_and(|end| end == "sql"));
    paths.sort();
    if paths.is_empty() {
        return Err(Error::usage(format!("{} has no rule in it", directory.display()))
            .hint("a rule is a file that ends in .sql; docs/diagnose.md describes it"));
    }
    let read = |path: &std::path::PathBuf| {
        let text = std::fs::read_to_string(path).map_err(|error| failed(path, error))?;
        parse(&path.display().to_string(), &text)
    };
    paths.iter().map(read).collect()
}

#[cfg(test)]
mod tests {
    use probe_client::Client;
    use probe_client::endpoint::{FoundEndpoint, RunLocation};
    use probe_proto::tables::TABLES;

    use super::*;
    use crate::diagnose::rows;
    use crate::diagnose::rule::REFERENCE;
    use crate::diagnose::steps::DiagnosedSteps;
    use crate::shared_steps::tests::shared;
    use crate::unique_pids::UniquePids;

    #[test]
    fn the_rules_that_are_built_in_are_sound() {
        for rule in built_in().unwrap() {
            for need in &rule.needs {
                let (column, least) = need.split_once(" >= ").unwrap_or((need, "1"));
                assert!(column.split('.').count() == 3 && least.parse::<u32>().is_ok(), "{}: {need}", rule.name);
            }
        }
    }

    /// A rule whose SQL is wrong is not decided, on each run, as if something had not been recorded.
    #[tokio::test]
    async fn the_sql_of_every_rule_has_an_answer_also_where_nothing_was_recorded() {
        let directory = tempfile::tempdir().unwrap();
        probe_store::write_system(directory.path(), TABLES, &[]).unwrap();
        let target = FoundEndpoint { location: RunLocation::Directory(directory.path().to_owned()), pid: None };
        let mut client = Client::open(&target, None).await.unwrap();
        // Also where tables are replaced by queries, since hosts have the same process ids and steps are counted differently.
        let replaced = DiagnosedSteps {
            shared: shared(&[0, -5]),
            pids: UniquePids::of([("a", 7), ("b", 7)].into_iter()),
            ..DiagnosedSteps::default()
        };
        let mut failed = Vec::new();
        for steps in [DiagnosedSteps::default(), replaced] {
            for rule in built_in().unwrap() {
                let sql = steps.fill(&rule.sql).replace(REFERENCE, "(1, 'forward', 1e0, 0e0)");
                match rows::ask(&mut client, &sql).await {
                    Ok(rows) if rows.count == 0 => {}
                    answer => failed.push(format!("{}: {answer:?}: {sql}", rule.name)),
                }
            }
        }
        assert!(failed.is_empty(), "{failed:#?}");
    }
}
