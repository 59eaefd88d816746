-- rule: python-in-forward
-- family: host
-- kind: time
-- part: forward
-- confidence: likely
-- needs: python.operator_counts.part
-- persistence: 0.9
-- reduce: typical
-- saving: ceiling
-- levels: 10, 25, 50
-- line: sampled
-- also: python, numpy, python in forward
-- says: {who} spends {took:ms} of a step in forward and in no operator of torch's: in Python, or in another library ({watched} steps were watched)
-- do: compute what is the same in each step once, and with tensors what numbers are computed for one by one
-- record: it is recorded in one step of 64 of those with detail
WITH counted AS (
    SELECT pid, step, SUM(duration) AS took, SUM(count) AS runs, SUM(outermost) AS calls FROM python.operator_counts
    WHERE pid IN ($pids) AND step BETWEEN GREATEST($first - 128, 8) AND $last AND part = 'forward' GROUP BY pid, step
), each AS (
    -- To be watched takes an operator three microseconds. A call from Python takes ten with all that modules do around it.
    SELECT s.pid, s.step, 1 - (c.took + 3e-6 * c.runs + 1e-5 * c.calls) / s.forward_time AS share FROM python.steps s
    JOIN counted c ON s.pid = c.pid AND s.step = c.step WHERE s.forward_time > 0
), usual AS (
    -- Few steps are watched, and in one of them a neighbour may have had the processor between two operators.
    SELECT pid, COUNT(*) AS watched, CASE WHEN COUNT(*) >= 3 THEN median(share) ELSE MIN(share) END AS share FROM each GROUP BY pid HAVING COUNT(*) >= 2
), compiled AS (
    -- What torch.compile makes of a model calls no operators.
    SELECT pid FROM python.pauses WHERE kind = 'compilation' AND pid IN ($pids)
    UNION SELECT pid FROM python.environment WHERE pid IN ($pids) AND wrapper LIKE '%OptimizedModule%'
)
SELECT s.step, s.rank, s.forward_time AS cost, s.forward_time * u.share AS took, u.watched,
    -- A millisecond of it takes longer while the thread waits for a processor, by as much as the step does.
    s.forward_time - GREATEST(s.forward_time * u.share - 0.001 * s.duration / GREATEST(s.duration - COALESCE(s.run_delay, 0), 0.02 * s.duration), 0.0) AS ref
FROM python.steps s JOIN usual u ON s.pid = u.pid
WHERE s.step BETWEEN $first AND $last AND u.share > 0 AND s.pid NOT IN (SELECT pid FROM compiled)
