//! Placeholders in the SQL of rules: the steps that are looked at, and the size of their inputs.

use std::collections::BTreeSet;

use super::steps::Steps;

/// `$input_size`, with columns pid, step, size: elements of the first tensors that the model was called with in that step. Steps
/// whose modules were not recorded have no row. A shape is text, `[64, 3, 224, 224]`; dimensions beyond the fourth do not count.
const INPUT_SIZE: &str = "(
    SELECT pid, step, SUM(COALESCE(TRY_CAST(split_part(sizes, ',', 1) AS DOUBLE), 1) * COALESCE(TRY_CAST(split_part(sizes, ',', 2) AS DOUBLE), 1)
        * COALESCE(TRY_CAST(split_part(sizes, ',', 3) AS DOUBLE), 1) * COALESCE(TRY_CAST(split_part(sizes, ',', 4) AS DOUBLE), 1)) AS size
    FROM (SELECT pid, step, replace(btrim(input_shape, '[]'), ' ', '') AS sizes FROM python.torch_trace
        WHERE $window AND depth = 0 AND stage = 'forward' AND input_shape IS NOT NULL)
    GROUP BY pid, step
)";

/// `$larger_inputs`: pids of processes whose inputs become larger and larger, which explains that they take more and more time
/// and memory.
const LARGER_INPUTS: &str = "(
    SELECT pid FROM $input_size AS input_size WHERE size > 0 GROUP BY pid
    HAVING COUNT(*) >= 20 AND corr(step, size) >= 0.7 AND MAX(size) >= 1.2 * MIN(size)
)";

impl Steps {
    /// SQL with its placeholders replaced: $larger_inputs, $input_size, $window, $first, $last, $pids. Steps are numbered by the
    /// shared count.
    pub(crate) fn fill(&self, sql: &str) -> String {
        // What is wrong in a run that never settled is asked of all of its steps.
        let settled = self.numbers.first().copied().zip(self.numbers.last().copied());
        let (first, last) = settled.or(self.read).unwrap_or((0, -1));
        let pids: BTreeSet<i64> = self.processes.iter().map(|process| process.pid).collect();
        let pids = pids.iter().map(i64::to_string).collect::<Vec<_>>().join(", ");
        let pids = if pids.is_empty() { "NULL".to_owned() } else { pids };
        // The order matters: each replacement may contain the placeholders after it.
        let sql = sql
            .replace("$larger_inputs", LARGER_INPUTS)
            .replace("$input_size", INPUT_SIZE)
            .replace("$window", &format!("step BETWEEN {first} AND {last} AND pid IN ({pids})"))
            .replace("$first", &first.to_string())
            .replace("$last", &last.to_string())
            .replace("$pids", &pids);
        self.shared.rewrite(&sql)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_left_that_stands_for_something() {
        let steps = Steps { numbers: vec![4, 5, 9], ..Steps::default() };
        let sql = steps.fill(
            "SELECT $first, $last FROM $input_size AS s WHERE pid IN $larger_inputs AND pid IN ($pids) AND $window",
        );
        assert!(!sql.contains('$'), "{sql}");
        assert!(
            sql.starts_with("SELECT 4, 9 FROM (") && sql.ends_with("step BETWEEN 4 AND 9 AND pid IN (NULL)"),
            "{sql}"
        );
    }
}
