-- rule: small-operations-between-parts
-- family: host
-- kind: time
-- part: other
-- confidence: likely
-- needs: python.operator_counts.part
-- persistence: 0.9
-- reduce: typical
-- saving: ceiling
-- levels: 7, 101, 101
-- line: sampled
-- also: ema, moving average, averaged weights, loops over parameters
-- says: {who} calls {calls} operators in each step outside of data, forward, backward and optimizer, of {us} microseconds each, most often {operator}: most of that is what a call costs, whatever it computes ({watched} steps were watched)
-- do: do it for all parameters at once (torch._foreach_lerp_; AveragedModel's multi_avg_fn for a moving average of weights), or every n steps
-- record: it is recorded in one step of 64 of those with detail
WITH counted AS (
    SELECT pid, step, SUM(outermost) AS calls, SUM(duration) AS took FROM python.operator_counts
    WHERE pid IN ($pids) AND step BETWEEN GREATEST($first - 128, 8) AND $last AND part = 'other' GROUP BY pid, step
), most AS (
    SELECT pid, operator, row_number() OVER (PARTITION BY pid ORDER BY SUM(outermost) DESC, operator) AS place FROM python.operator_counts
    WHERE pid IN ($pids) AND step BETWEEN GREATEST($first - 128, 8) AND $last AND part = 'other' GROUP BY pid, operator
), usual AS (
    -- In a watched step a neighbour may have the processor for longer than the operators take.
    SELECT pid, COUNT(*) AS watched, median(calls) AS calls, MIN(1e6 * took / calls) AS us FROM counted
    WHERE calls > 0 GROUP BY pid HAVING COUNT(*) >= 2
)
SELECT s.step, s.rank, s.other_time AS cost, u.calls, round(u.us, 1) AS us, most.operator, u.watched,
    -- A loop of Python takes about 3 microseconds around each of them (a moving average of 80 parameters: 3.9).
    GREATEST(s.other_time - u.calls * (u.us + 3.0) * 1e-6, 0.0) AS ref
FROM python.steps s JOIN usual u ON s.pid = u.pid JOIN most ON most.pid = u.pid AND most.place = 1
-- On a GPU most operators take the host as long, and the rule host-bound says whether the GPU waits for them.
WHERE s.step BETWEEN $first AND $last AND s.gpu_idle_max IS NULL AND u.calls >= 100 AND u.us < 12
