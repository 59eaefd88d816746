-- rule: recompute-not-needed
-- family: device
-- kind: time
-- part: backward
-- confidence: likely
-- needs: python.torch_trace.duration, python.memory.max_rss
-- least: 20
-- levels: 5, 15, 30
-- reduce: typical
-- explains: slower-than-reference
-- also: recompute, activation checkpointing
-- says: {who} computes activations again in backward (activation checkpointing), with {free:%} of the machine's memory free
-- do: checkpoint fewer modules
-- record: probe config detail=every-step
WITH memory AS (
    SELECT m.pid, 1 - MAX(m.max_rss) / MAX(e.machine_memory) AS free
    FROM python.memory m JOIN python.environment e ON m.pid = e.pid
    WHERE m.device = 'cpu' AND e.device = 'cpu' AND m.pid IN ($pids) GROUP BY m.pid
    HAVING MAX(m.max_rss) < 0.5 * MAX(e.machine_memory)
), t AS (
    SELECT pid, rank, step, SUM(duration) AS cost FROM python.torch_trace WHERE $window AND stage = 'recompute'
    GROUP BY pid, rank, step
)
SELECT t.step, t.rank, t.cost, 0.0 AS ref, memory.free FROM t JOIN memory ON t.pid = memory.pid
