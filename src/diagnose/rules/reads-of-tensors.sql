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
WITH each AS (
    SELECT pid, part, concat(file, ':', CAST(line AS VARCHAR)) AS line, step, SUM(count) AS count, SUM(waited) AS waited
    FROM python.sync_points WHERE pid IN ($pids) AND step BETWEEN GREATEST($first - 128, 8) AND $last AND file IS NOT NULL AND part IN ('data', 'forward', 'backward', 'optimizer', 'other')
    GROUP BY pid, part, file, line, step
), l AS (
    -- Few steps are watched, so those of the warm-up count, too; and in one of them the thread may have lost its processor in the middle of a read.
    SELECT pid, part, line, COUNT(*) AS watched, median(count) AS count, CASE WHEN COUNT(*) >= 3 THEN median(waited) ELSE MIN(waited) END AS waited
    FROM each GROUP BY pid, part, line HAVING COUNT(*) >= 2 AND CASE WHEN COUNT(*) >= 3 THEN median(count) ELSE MIN(count) END >= 200
), s AS (
    SELECT s.pid, s.rank, s.step, l.part, l.line, l.count, l.watched,
        -- What Python does around a read takes a microsecond at least, and longer without a processor.
        GREATEST(l.waited, l.count * 1e-6 * s.duration / GREATEST(s.duration - COALESCE(s.run_delay, 0), 0.02 * s.duration)) AS waited, CASE l.part WHEN 'data' THEN s.data_time
        WHEN 'forward' THEN s.forward_time WHEN 'backward' THEN s.backward_time WHEN 'optimizer' THEN s.optimizer_time
        ELSE s.other_time END AS cost
    FROM python.steps s JOIN l ON s.pid = l.pid WHERE s.step BETWEEN $first AND $last
)
SELECT step, rank, part, line, cost, GREATEST(cost - waited, 0.0) AS ref, count, watched FROM s
