-- rule: reads-of-tensors
-- family: host
-- kind: time
-- confidence: likely
-- needs: python.sync_points.part
-- persistence: 0.9
-- reduce: typical
-- explains: work-between-parts, span-between-parts, slower-than-reference
-- also: item, sync, synchronization, sync points
-- says: {who} reads {count} values of tensors one by one in each step, in {part}, at {line} ({watched} steps were watched)
-- do: read them at once with .tolist() or .cpu(), and less often
-- record: it is recorded in one of 16 steps at first, and later in one of 64
WITH part_times AS (
    SELECT pid, rank, step, duration, run_delay, part, part_time FROM $part_times AS t
    WHERE pid IN ($pids) AND step BETWEEN GREATEST($first - 128, 8) AND $last AND part <> 'comm'
), each AS (
    -- Their share of the part, because the machine may be quicker or slower in the few watched steps than in the others.
    SELECT r.pid, r.part, concat(r.file, ':', CAST(r.line AS VARCHAR)) AS line, r.step, SUM(r.count) AS count,
        LEAST(SUM(r.waited) / NULLIF(MAX(p.part_time), 0.0), 1.0) AS share
    FROM python.sync_points r JOIN part_times p ON r.pid = p.pid AND r.step = p.step AND r.part = p.part WHERE r.file IS NOT NULL
    GROUP BY r.pid, r.part, r.file, r.line, r.step
), l AS (
    -- Few steps are watched, so those of the warm-up count, too; and in one of them the thread may have lost its processor in the middle of a read.
    SELECT pid, part, line, COUNT(*) AS watched, median(count) AS count, CASE WHEN COUNT(*) >= 3 THEN median(share) ELSE MIN(share) END AS share
    FROM each GROUP BY pid, part, line HAVING COUNT(*) >= 2 AND CASE WHEN COUNT(*) >= 3 THEN median(count) ELSE MIN(count) END >= 200
), s AS (
    SELECT p.rank, p.step, p.part, l.line, l.count, l.watched, p.part_time AS cost,
        -- What Python does around a read takes a microsecond at least, and longer without a processor.
        GREATEST(p.part_time * l.share, l.count * 1e-6 * p.duration / GREATEST(p.duration - COALESCE(p.run_delay, 0), 0.02 * p.duration)) AS waited
    FROM part_times p JOIN l ON p.pid = l.pid AND p.part = l.part WHERE p.step BETWEEN $first AND $last
)
SELECT step, rank, part, line, cost, GREATEST(cost - waited, 0.0) AS ref, count, watched FROM s
