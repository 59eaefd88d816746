-- rule: reads-of-tensors
-- family: host
-- kind: time
-- confidence: likely
-- needs: python.sync_points.part
-- persistence: 0.9
-- reduce: typical
-- explains: work-between-parts, slower-than-reference
-- also: item, sync, synchronization, sync points
-- says: {who} reads {count} values of tensors one by one in each step, in {part}, at {line} ({watched} steps were watched)
-- do: read them at once with .tolist() or .cpu(), and less often
-- record: it is recorded in one step of 64 of those with detail
WITH l AS (
    SELECT pid, part, concat(file, ':', CAST(line AS VARCHAR)) AS line, COUNT(DISTINCT step) AS watched,
        SUM(count) / COUNT(DISTINCT step) AS count, SUM(waited) / COUNT(DISTINCT step) AS waited
    FROM python.sync_points WHERE $window AND file IS NOT NULL AND part IN ('data', 'forward', 'backward', 'optimizer', 'other')
    GROUP BY pid, part, file, line HAVING COUNT(DISTINCT step) >= 3 AND SUM(count) / COUNT(DISTINCT step) >= 200
), s AS (
    SELECT s.pid, s.rank, s.step, l.part, l.line, l.count, l.watched, l.waited, CASE l.part WHEN 'data' THEN s.data_time
        WHEN 'forward' THEN s.forward_time WHEN 'backward' THEN s.backward_time WHEN 'optimizer' THEN s.optimizer_time
        ELSE s.other_time END AS cost
    FROM python.steps s JOIN l ON s.pid = l.pid WHERE s.step BETWEEN $first AND $last
)
SELECT step, rank, part, line, cost, GREATEST(cost - waited, 0.0) AS ref, count, watched FROM s
