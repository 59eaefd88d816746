-- rule: workers-restart
-- family: data
-- kind: time
-- parts: together
-- confidence: measured
-- needs: python.data_trace.persistent_workers
-- gate: epochs >= 3
-- explains: periodic-stall, irregular-stall, slower-than-reference
-- also: persistent_workers, workers
-- says: {who} restarted {workers} {epochs} times in these steps
-- do: make the DataLoader once, with persistent_workers=True, and not once per epoch
-- record: recorded where a DataLoader has workers
WITH b AS (
    SELECT pid, step, MIN(batch_index) = 0 AS is_first, MAX(num_workers) AS num_workers FROM python.data_trace
    WHERE $window AND num_workers > 0 AND NOT persistent_workers GROUP BY pid, step
), part AS (
    SELECT t.pid, t.rank, t.step, b.is_first, b.num_workers, t.part, t.part_time AS cost
    FROM $part_times AS t JOIN b ON t.pid = b.pid AND t.step = b.step WHERE t.part IN ('data', 'other')
), usual AS (
    SELECT pid, part, median(cost) AS cost, SUM(CASE WHEN is_first THEN 1.0 ELSE 0.0 END) AS epochs FROM part
    GROUP BY pid, part
)
SELECT part.step, part.rank, part.part, CASE WHEN is_first THEN part.cost ELSE usual.cost END AS cost, usual.cost AS ref, usual.epochs,
    CASE part.num_workers WHEN 1 THEN '1 worker' ELSE concat(part.num_workers, ' workers') END AS workers
FROM part JOIN usual ON part.pid = usual.pid AND part.part = usual.part
