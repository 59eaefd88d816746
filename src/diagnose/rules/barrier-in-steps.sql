-- rule: barrier-in-steps
-- family: communication
-- kind: time
-- part: comm
-- confidence: measured
-- needs: python.nccl_trace.duration_ms
-- gate: share >= 0.9
-- levels: 2, 25, 101
-- explains: slower-than-reference
-- also: barrier, barriers
-- says: {who} calls barrier {count} times a step, for {seconds:ms} beside the wait for the slowest rank
-- do: leave it out: the next collective waits for all ranks anyway
-- record: recorded where torch.distributed is used
WITH b AS (
    -- The rank that comes last waits for no other: what it spends is the barrier itself.
    SELECT step, group_name, seq, MIN(duration_ms) / 1e3 AS seconds FROM python.nccl_trace
    WHERE $window AND operation_type = 'barrier' AND NOT async_op GROUP BY step, group_name, seq
    HAVING COUNT(duration_ms) = MAX(group_size)
), p AS (
    SELECT step, SUM(seconds) AS seconds, COUNT(*) AS count FROM b GROUP BY step
), usual AS (
    SELECT AVG(count) AS count, AVG(seconds) AS seconds FROM p HAVING COUNT(*) > 0
)
SELECT s.step, s.rank, COALESCE(p.seconds, 0.0) AS cost, 0.0 AS ref, CASE WHEN p.step IS NULL THEN 0.0 ELSE 1.0 END AS share,
    usual.count, usual.seconds
FROM python.steps s LEFT JOIN p ON s.step = p.step CROSS JOIN usual
WHERE s.step BETWEEN $first AND $last AND s.pid IN ($pids)
