//! The memory that modules keep allocated after their calls, in the newest step with a measurement, and by how much it has
//! grown since the first one.

use probe_client::Client;
use probe_common::error::Result;

use crate::small_rows::{AnswerRow, rows};

/// Modules and optimizers by what stays allocated after them (MB), the largest first.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct KeptByModules {
    /// The newest step with a measurement.
    pub(crate) step: i64,
    pub(crate) most: Vec<(String, f64)>,
    /// The first step with a measurement, where that is another one; `grew` is by how much memory has grown since then.
    pub(crate) since: Option<i64>,
    pub(crate) grew: Vec<(String, f64)>,
}

/// Number of modules that are named.
const MAX_NAMED: usize = 3;
/// Smaller sizes are noise of the allocator's rounding (MB).
const MIN_SIZE: f64 = 0.001;

/// What modules keep in the rows of `process`, a condition in SQL; None where nothing was measured.
pub(super) async fn ask(client: &mut Client, process: &str) -> Result<Option<KeptByModules>> {
    let sql = format!(
        "SELECT step, module, SUM(allocated_delta) FROM python.torch_trace WHERE {process} AND allocated_delta IS NOT NULL \
         AND step IN (SELECT MAX(step) FROM python.torch_trace WHERE {process} AND allocated_delta IS NOT NULL UNION ALL \
         SELECT MIN(step) FROM python.torch_trace WHERE {process} AND allocated_delta IS NOT NULL) \
         GROUP BY step, module ORDER BY step, 3 DESC, module"
    );
    let found = rows(client, &sql).await?;
    let sums = found.iter().filter_map(|row: &AnswerRow| Some((row.int(0)?, row.text(1)?, row.float(2)?))).collect();
    Ok(of_sums(sums))
}

/// What modules keep, from (step, module, MB) of the first step and the newest one.
fn of_sums(sums: Vec<(i64, String, f64)>) -> Option<KeptByModules> {
    let (first, step) = (sums.first()?.0, sums.last()?.0);
    let before =
        |module: &str| sums.iter().find(|(at, name, _)| *at == first && name == module).map_or(0.0, |sum| sum.2);
    let newest = || sums.iter().filter(|sum| sum.0 == step);
    let most = newest().map(|(_, module, kept)| (module.clone(), *kept)).collect();
    let grew = newest().map(|(_, module, kept)| (module.clone(), kept - before(module))).collect();
    let since = (first < step).then_some(first);
    let kept = KeptByModules { step, most: largest(most), since, grew: since.map_or_else(Vec::new, |_| largest(grew)) };
    (!kept.most.is_empty() || !kept.grew.is_empty()).then_some(kept)
}

fn largest(mut modules: Vec<(String, f64)>) -> Vec<(String, f64)> {
    modules.retain(|(_, size)| *size >= MIN_SIZE);
    modules.sort_by(|one, other| other.1.total_cmp(&one.1));
    modules.truncate(MAX_NAMED);
    modules
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sums(values: &[(i64, &str, f64)]) -> Option<KeptByModules> {
        of_sums(values.iter().map(|(step, module, kept)| (*step, (*module).to_owned(), *kept)).collect())
    }

    #[test]
    fn the_newest_step_beside_the_first() {
        assert_eq!(sums(&[]), None);
        assert_eq!(sums(&[(0, "relu", 0.0)]), None);
        let one = sums(&[(0, "AdamW", 80.0), (0, "mlp", 12.0), (0, "a", 1.0), (0, "b", 0.5)]);
        let one = one.expect("it was measured");
        assert_eq!((one.step, one.since, one.grew.len()), (0, None, 0));
        assert_eq!(one.most, [("AdamW".to_owned(), 80.0), ("mlp".to_owned(), 12.0), ("a".to_owned(), 1.0)]);
        let two =
            sums(&[(0, "AdamW", 80.0), (0, "mlp", 12.0), (64, "mlp", 20.0), (64, "new", 3.0), (64, "AdamW", 0.0)]);
        let two = two.expect("it was measured");
        assert_eq!((two.step, two.since), (64, Some(0)));
        assert_eq!(two.grew, [("mlp".to_owned(), 8.0), ("new".to_owned(), 3.0)]);
    }
}
