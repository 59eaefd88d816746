-- rule: broadcasts-in-steps
-- family: communication
-- kind: time
-- confidence: measured
-- needs: python.nccl_trace.duration_ms
-- gate: share >= 0.9
-- levels: 2, 101, 101
-- explains: slower-than-reference
-- also: broadcast, broadcast_buffers, buffers
-- says: {who} broadcasts {sent} a step, for {seconds:ms} beside the wait for the slowest rank
-- do: DistributedDataParallel(broadcast_buffers=False), if ranks need not have the same buffers (statistics of BatchNorm) in each step; what never changes is broadcast once, before the loop
-- record: recorded where torch.distributed is used
WITH b AS (
    SELECT step, group_name, seq, MIN(duration_ms) / 1e3 AS seconds, MAX(bytes) AS bytes FROM python.nccl_trace
    WHERE $window AND operation_type = 'broadcast' GROUP BY step, group_name, seq
    HAVING COUNT(duration_ms) = MAX(group_size)
), p AS (
    SELECT step, SUM(seconds) AS seconds, SUM(bytes) AS bytes FROM b GROUP BY step
), usual AS (
    SELECT AVG(bytes) AS bytes, AVG(seconds) AS seconds FROM p HAVING COUNT(*) > 0
), e AS (
    -- DistributedDataParallel broadcasts in its forward.
    SELECT pid, bool_or(wrapper LIKE '%DistributedDataParallel%') AS wrapped FROM python.environment WHERE pid IN ($pids)
    GROUP BY pid
)
SELECT s.step, s.rank, CASE WHEN e.wrapped THEN 'forward' ELSE 'comm' END AS part, COALESCE(p.seconds, 0.0) AS cost,
    0.0 AS ref, CASE WHEN p.step IS NULL THEN 0.0 ELSE 1.0 END AS share, usual.seconds,
    CASE WHEN usual.bytes < 1e5 THEN concat(CAST(CAST(round(usual.bytes) AS BIGINT) AS VARCHAR), ' bytes')
        ELSE concat(CAST(round(usual.bytes / 1e6, 2) AS VARCHAR), ' MB') END AS sent
FROM python.steps s LEFT JOIN p ON s.step = p.step LEFT JOIN e ON s.pid = e.pid CROSS JOIN usual
WHERE s.step BETWEEN $first AND $last AND s.pid IN ($pids)
