//! Placeholders in the SQL of rules: the steps that are looked at, and the size of their inputs.

use std::collections::BTreeSet;

use super::steps::{DiagnosedSteps, part_in_words};
use probe_proto::step_part::StepPart;

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

/// `$pipelined`: pids of processes that have a stage of a pipeline: they send or receive point to point in most steps.
const PIPELINED: &str = "(
    SELECT pid FROM python.nccl_trace WHERE $window AND operation_type IN ('send', 'recv')
    GROUP BY pid HAVING COUNT(DISTINCT step) >= 0.5 * ($last - $first + 1)
)";

/// `$few_samples`: pids of processes whose model is called in evaluation mode with fewer samples than it learns from. That is a
/// policy that plays, or a model that generates, and no validation.
const FEW_SAMPLES: &str = "(
    WITH calls AS (
        SELECT pid, stage, median(TRY_CAST(split_part(btrim(input_shape, '[] '), ',', 1) AS DOUBLE)) AS samples FROM python.torch_trace
        WHERE $window AND depth = 0 AND stage IN ('forward', 'validation') AND input_shape IS NOT NULL GROUP BY pid, stage
    )
    SELECT v.pid FROM calls v JOIN calls f ON v.pid = f.pid
    WHERE v.stage = 'validation' AND f.stage = 'forward' AND v.samples < 0.5 * f.samples
)";

/// `$python_share`, with columns pid, part (forward or other), share, watched: the share of the part that is spent in no operator of
/// torch's, and the number of watched steps that it is known from. Processes in which torch.compile has compiled something have no
/// row, because compiled code calls no operators.
const PYTHON_SHARE: &str = "(
    WITH counted AS (
        SELECT pid, step, part, SUM(duration) AS took, SUM(count) AS runs, SUM(outermost) AS calls FROM python.operator_counts
        WHERE pid IN ($pids) AND step BETWEEN GREATEST($first - 128, 8) AND $last AND part IN ('forward', 'other') GROUP BY pid, step, part
    ), wrapped AS (
        SELECT pid, bool_or(wrapper LIKE '%DistributedDataParallel%') AS is_ddp FROM python.environment WHERE pid IN ($pids) GROUP BY pid
    ), waits AS (
        -- A forward pass may wait for other ranks: for buffers in DistributedDataParallel, and for what FSDP gathers.
        SELECT pid, step, SUM(duration_ms) / 1e3 AS seconds, SUM(CASE WHEN operation_type = 'broadcast' THEN duration_ms ELSE 0.0 END) / 1e3 AS broadcasts
        FROM python.nccl_trace WHERE pid IN ($pids) AND step BETWEEN GREATEST($first - 128, 8) AND $last GROUP BY pid, step
    ), timed AS (
        SELECT t.pid, t.step, t.part, c.took, c.runs, c.calls, t.part_time,
            CASE WHEN t.duration > 0 THEN LEAST(COALESCE(t.run_delay, 0.0) / t.duration, 1.0) ELSE 0.0 END AS delayed,
            CASE WHEN t.part <> 'forward' THEN 0.0 WHEN w.is_ddp THEN COALESCE(n.broadcasts, 0.0)
                ELSE GREATEST(COALESCE(n.seconds, 0.0) - t.comm_time, 0.0) END AS waited
        FROM $part_times AS t JOIN counted c ON t.pid = c.pid AND t.step = c.step AND t.part = c.part
            LEFT JOIN waits n ON t.pid = n.pid AND t.step = n.step LEFT JOIN wrapped w ON t.pid = w.pid
    ), each AS (
        -- To watch an operator takes three microseconds. A call from Python takes ten with all that modules do around it. The rest is
        -- taken to wait for a processor for as large a share of its time as the whole step.
        SELECT pid, part, (1 - delayed) * (1 - (took + waited + 3e-6 * runs + 1e-5 * calls) / part_time) AS share FROM timed WHERE part_time > 0
    ), compiled AS (
        SELECT pid FROM python.pauses WHERE kind = 'compilation' AND pid IN ($pids)
        UNION SELECT pid FROM python.environment WHERE pid IN ($pids) AND wrapper LIKE '%OptimizedModule%'
    )
    -- Few steps are watched, and in one of them a neighbour may have had the processor between two operators.
    SELECT pid, part, COUNT(*) AS watched, CASE WHEN COUNT(*) >= 3 THEN median(share) ELSE MIN(share) END AS share FROM each
    WHERE pid NOT IN (SELECT pid FROM compiled) GROUP BY pid, part HAVING COUNT(*) >= 2
)";

/// `$operator_calls`, with columns pid, part, calls, us, small, large, operator, watched: how many operators the part calls in a step,
/// how long one takes at least (microseconds), the time (s) that is in those of less than 12 microseconds and in the others, which one
/// is called most often, and the number of watched steps that this is known from.
const OPERATOR_CALLS: &str = "(
    WITH counted AS (
        SELECT pid, part, step, operator, SUM(outermost) AS calls, SUM(count) AS count, SUM(duration) AS took FROM python.operator_counts
        WHERE pid IN ($pids) AND step BETWEEN GREATEST($first - 128, 8) AND $last GROUP BY pid, part, step, operator
    ), of_step AS (
        SELECT pid, part, step, SUM(calls) AS calls, SUM(took) AS took, SUM(took) FILTER (WHERE took < 12e-6 * count) AS small
        FROM counted GROUP BY pid, part, step
    ), most AS (
        SELECT pid, part, operator, row_number() OVER (PARTITION BY pid, part ORDER BY SUM(calls) DESC, operator) AS number
        FROM counted GROUP BY pid, part, operator
    )
    -- In a watched step a neighbour may have the processor for longer than the operators take.
    SELECT s.pid, s.part, most.operator, COUNT(*) AS watched, median(s.calls) AS calls, MIN(1e6 * s.took / s.calls) AS us,
        COALESCE(MIN(s.small), 0.0) AS small, MIN(s.took - COALESCE(s.small, 0.0)) AS large
    FROM of_step s JOIN most ON most.pid = s.pid AND most.part = s.part AND most.number = 1
    WHERE s.calls > 0 GROUP BY s.pid, s.part, most.operator HAVING COUNT(*) >= 2
)";

/// `$sampler_share`, with columns pid, share, function: of the stack samples that wait for batches, the share inside the sampler's
/// `__iter__`. There is no row for an iterable dataset, which has no sampler of the program's.
const SAMPLER_SHARE: &str = "(
    SELECT e.pid, e.function, CAST(COUNT(*) FILTER (WHERE t.function = e.function) AS DOUBLE) / COUNT(*) AS share
    FROM (SELECT pid, concat(sampler, '.__iter__') AS function FROM $newest_environment WHERE sampler IS NOT NULL) AS e
    JOIN python.stack_samples AS t ON e.pid = t.pid
    WHERE t.step BETWEEN $first AND $last AND t.part = 'data' GROUP BY e.pid, e.function HAVING COUNT(*) >= 10
)";

/// `$cpu_steps`, with columns pid, rank, step, computes: the steps of processes whose models are on the processor, and the share of each
/// in which the training thread computed. Where it sleeps, or waits for a lock or a processor, it does not.
const CPU_STEPS: &str = "(
    SELECT pid, rank, step, LEAST(cpu_time / duration, 1.0) AS computes FROM python.steps
    WHERE $window AND cpu_time IS NOT NULL AND duration > 0 AND pid IN (
        SELECT pid FROM python.environment WHERE pid IN ($pids) AND device IS NOT NULL GROUP BY pid HAVING bool_and(device = 'cpu')
    )
)";

/// `$delayed_workers`: pids of processes whose data workers wait for a processor for more than a tenth of the time. That their batches
/// are late is not the loader's doing.
const DELAYED_WORKERS: &str = "(
    SELECT pid FROM process.metrics WHERE $window AND data_workers_run_delay IS NOT NULL
    GROUP BY pid HAVING SUM(data_workers_run_delay) / SUM(data_workers) >= 10
)";

/// `$usual_other_time`, of a row of `python.steps`: the most time (s) that healthy programs spend outside of the parts. A millisecond of
/// work takes longer while the thread waits for a processor, by as much as the step does. Each further call of the model, as of a
/// policy that plays, has a loop around it.
const USUAL_OTHER_TIME: &str = "(
    (0.001 + 0.00025 * GREATEST(micro_steps - 1, 0)) * duration / GREATEST(duration - COALESCE(run_delay, 0), 0.02 * duration)
        + 0.15 * (duration - other_time - COALESCE(checkpoint_time, 0))
)";

/// `$median_other_time`, of a row of `python.steps`: the time (s) that they mostly spend there.
const MEDIAN_OTHER_TIME: &str = "(0.0002 + 0.03 * (duration - other_time - COALESCE(checkpoint_time, 0)))";

/// `$time_left`, of columns steps and seconds: that many more steps, and how long they take, in words.
const TIME_LEFT: &str = "(
    CAST(CAST(floor(steps) AS BIGINT) AS VARCHAR) || ' more steps (' || CASE WHEN seconds < 60 THEN 'less than a minute'
        WHEN seconds < 7200 THEN CAST(CAST(ceil(seconds / 60) AS BIGINT) AS VARCHAR) || ' minutes'
        WHEN seconds < 172800 THEN CAST(CAST(round(seconds / 3600) AS BIGINT) AS VARCHAR) || ' hours'
        ELSE CAST(CAST(round(seconds / 86400) AS BIGINT) AS VARCHAR) || ' days' END || ')'
)";

/// `$newest_environment`: the newest row of `python.environment` of each process.
const NEWEST_ENVIRONMENT: &str = "(
    SELECT * FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY pid ORDER BY ts DESC) AS newest FROM python.environment WHERE pid IN ($pids))
    WHERE newest = 1
)";

/// `$part_times`: the columns of `python.steps`, a row for each step and part of it (data, forward, backward, optimizer, comm, other),
/// with the columns part and part_time (seconds).
const PART_TIMES: &str = "(
    SELECT s.*, p.part, CASE p.part WHEN 'data' THEN s.data_time WHEN 'forward' THEN s.forward_time WHEN 'backward' THEN s.backward_time
        WHEN 'optimizer' THEN s.optimizer_time WHEN 'comm' THEN s.comm_time ELSE s.other_time END AS part_time
    FROM python.steps s CROSS JOIN (VALUES ('data'), ('forward'), ('backward'), ('optimizer'), ('comm'), ('other')) AS p(part)
)";

/// `$busy_gpu`: pids of processes whose GPU has work in at least half of a step. Where it waits for the host instead, it may take as
/// long as it does.
const BUSY_GPU: &str = "(
    SELECT pid FROM python.steps WHERE $window AND gpu_idle_max IS NOT NULL GROUP BY pid
    HAVING COUNT(*) >= 8 AND median(gpu_idle_max / duration) <= 0.5
)";

/// `$gpu_memory`, with columns host, memory: the memory (MB) that each GPU of a host has, where they have equally much.
const GPU_MEMORY: &str = "(
    SELECT host, MAX(memory_total) AS memory FROM gpu.metrics WHERE memory_total IS NOT NULL GROUP BY host
    HAVING MAX(memory_total) = MIN(memory_total)
)";

/// `$captures`: the rows of `python.captures` of the newest capture of each process, or rank: of those with many kernels, else of
/// those with operators.
const CAPTURES: &str = "(
    SELECT * FROM (
        SELECT *, ROW_NUMBER() OVER (PARTITION BY rank, CASE WHEN rank IS NULL THEN host END, CASE WHEN rank IS NULL THEN pid END
            ORDER BY kernels >= 50 DESC, ts DESC, capture DESC) AS newest
        FROM python.captures WHERE (kernels > 0 OR operators > 0) AND $of_these_steps
    ) WHERE newest = 1
)";

/// `$rows_lost`, with columns pid, rank, table_name, share, why: the share of the rows of a table that a process lost, or that a
/// collector lost, where some were lost since these steps began. Rows that the budget of the disk evicted were there.
const ROWS_LOST: &str = "(
    WITH lost AS (
        SELECT pid, MIN(rank) AS rank, table_name, SUM(rows) AS rows, string_agg(DISTINCT reason, ', ') AS why FROM probe.drops
        WHERE pid IN ($pids) AND reason <> 'evicted' AND last_seen >= (SELECT MIN(ts) FROM python.steps WHERE $window)
        GROUP BY pid, table_name
    ), evicted AS (
        SELECT pid, table_name, SUM(rows) AS rows FROM probe.drops WHERE pid IN ($pids) AND reason = 'evicted' GROUP BY pid, table_name
    ), stored AS (
        SELECT pid, 'python.steps' AS table_name, COUNT(*) AS rows FROM python.steps WHERE pid IN ($pids) GROUP BY pid
        UNION ALL SELECT pid, 'python.torch_trace', COUNT(*) FROM python.torch_trace WHERE pid IN ($pids) GROUP BY pid
        UNION ALL SELECT pid, 'python.nccl_trace', COUNT(*) FROM python.nccl_trace WHERE pid IN ($pids) GROUP BY pid
        UNION ALL SELECT pid, 'python.data_trace', COUNT(*) FROM python.data_trace WHERE pid IN ($pids) GROUP BY pid
        UNION ALL SELECT pid, 'python.memory', COUNT(*) FROM python.memory WHERE pid IN ($pids) GROUP BY pid
        UNION ALL SELECT pid, 'python.metrics', COUNT(*) FROM python.metrics WHERE pid IN ($pids) GROUP BY pid
    )
    SELECT l.pid, l.rank, l.table_name, l.rows / (l.rows + COALESCE(e.rows, 0) + s.rows + 0.0) AS share, l.why
    FROM lost l JOIN stored s ON s.pid = l.pid AND s.table_name = l.table_name
        LEFT JOIN evicted e ON e.pid = l.pid AND e.table_name = l.table_name
)";

/// `$part_in_words`, of a column part: the part as sentences say it.
fn part_in_words_sql() -> String {
    let when = |part: StepPart| {
        let words = part_in_words(part.as_str()).replace('\'', "''");
        format!("WHEN '{}' THEN '{words}' ", part.as_str())
    };
    format!("CASE part {}ELSE part END", StepPart::ALL.map(when).concat())
}

impl DiagnosedSteps {
    /// SQL with its placeholders replaced: $larger_inputs, $pipelined, $input_size, $few_samples, $python_share, $operator_calls,
    /// $sampler_share, $cpu_steps, $delayed_workers, $usual_other_time, $median_other_time, $time_left, $newest_environment,
    /// $part_times, $part_in_words, $busy_gpu, $gpu_memory, $captures, $rows_lost, $window, $first, $last, $pids. Steps are numbered by the shared count.
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
            .replace("$pipelined", PIPELINED)
            .replace("$few_samples", FEW_SAMPLES)
            .replace("$python_share", PYTHON_SHARE)
            .replace("$operator_calls", OPERATOR_CALLS)
            .replace("$sampler_share", SAMPLER_SHARE)
            .replace("$cpu_steps", CPU_STEPS)
            .replace("$delayed_workers", DELAYED_WORKERS)
            .replace("$usual_other_time", USUAL_OTHER_TIME)
            .replace("$median_other_time", MEDIAN_OTHER_TIME)
            .replace("$time_left", TIME_LEFT)
            .replace("$newest_environment", NEWEST_ENVIRONMENT)
            .replace("$part_times", PART_TIMES)
            .replace("$part_in_words", &part_in_words_sql())
            .replace("$busy_gpu", BUSY_GPU)
            .replace("$gpu_memory", GPU_MEMORY)
            .replace("$captures", CAPTURES)
            .replace("$rows_lost", ROWS_LOST)
            .replace("$of_these_steps", &self.of_these_steps(first, last))
            .replace("$window", &format!("step BETWEEN {first} AND {last} AND pid IN ({pids})"))
            .replace("$first", &first.to_string())
            .replace("$last", &last.to_string())
            .replace("$pids", &pids);
        // The shared count of steps is looked up by the ids as they are.
        self.shared.rewrite(&self.pids.rewrite(&sql))
    }

    /// The condition that a capture is of these steps; of a run without steps that an agent recorded, all are.
    fn of_these_steps(&self, first: i64, last: i64) -> String {
        if self.processes.is_empty() || self.captures > 0 {
            return "true".to_owned();
        }
        let overlap = |offset: i64| format!("last_step >= {} AND first_step <= {}", first - offset, last - offset);
        format!("pid IN ($pids) AND {}", self.shared.condition(overlap))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_left_that_stands_for_something() {
        let steps = DiagnosedSteps { numbers: vec![4, 5, 9], ..DiagnosedSteps::default() };
        let sql = steps.fill(
            "SELECT $first, $last, $usual_other_time, $median_other_time, $time_left, $part_in_words FROM $input_size AS s JOIN $python_share AS p ON s.pid = p.pid \
             JOIN $operator_calls AS c ON s.pid = c.pid JOIN $sampler_share AS u ON s.pid = u.pid JOIN $cpu_steps AS d ON s.pid = d.pid JOIN $newest_environment AS e ON s.pid = e.pid \
             JOIN $gpu_memory AS m ON e.host = m.host JOIN $captures AS c ON c.pid = e.pid JOIN $rows_lost AS l ON e.pid = l.pid WHERE pid IN $larger_inputs AND pid IN $busy_gpu AND pid IN $delayed_workers \
             AND pid IN (SELECT pid FROM $part_times AS t) AND pid IN $few_samples AND pid IN $pipelined AND pid IN ($pids) AND $window",
        );
        assert!(!sql.contains('$'), "{sql}");
        assert!(sql.starts_with("SELECT 4, 9, (") && sql.ends_with("step BETWEEN 4 AND 9 AND pid IN (NULL)"), "{sql}");
    }
}
