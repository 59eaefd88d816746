-- rule: copies-of-tensors
-- family: host
-- kind: time
-- confidence: likely
-- needs: python.copies.part
-- persistence: 0.9
-- reduce: typical
-- levels: 5, 15, 30
-- saving: ceiling
-- explains: work-between-parts, slower-than-reference
-- also: copies, copying, contiguous
-- says: {who} copies {mb} MB of tensors in each step, in {part}, at {line} (calls of {operation}: {copies}; {watched} steps were watched)
-- do: copy them once before the loop, or keep the layout that is needed
-- record: it is recorded in one step of 64 of those with detail
WITH each AS (
    SELECT pid, part, file, line, operation, step, COUNT(*) AS copies, SUM(bytes) / 1e6 AS mb, SUM(duration) AS seconds
    FROM python.copies WHERE pid IN ($pids) AND step BETWEEN GREATEST($first - 128, 8) AND $last AND file IS NOT NULL AND part IN ('data', 'forward', 'other')
    GROUP BY pid, part, file, line, operation, step
), o AS (
    -- Few steps are watched, so those of the warm-up count, too; and in one of them the thread may have lost its processor in the middle of a copy.
    SELECT pid, part, file, line, operation, COUNT(*) AS watched, median(copies) AS copies, median(mb) AS mb,
        CASE WHEN COUNT(*) >= 3 THEN median(seconds) ELSE MIN(seconds) END AS seconds
    FROM each GROUP BY pid, part, file, line, operation HAVING COUNT(*) >= 2
), l AS (
    SELECT pid, part, concat(file, ':', CAST(line AS VARCHAR)) AS line, MAX(seconds) AS seconds,
        first_value(operation ORDER BY seconds DESC) AS operation, first_value(mb ORDER BY seconds DESC) AS mb,
        first_value(copies ORDER BY seconds DESC) AS copies, MAX(watched) AS watched
    FROM o GROUP BY pid, part, file, line
), s AS (
    SELECT s.pid, s.rank, s.step, l.part, l.line, l.mb, l.copies, l.operation, l.watched, l.seconds,
        CASE l.part WHEN 'data' THEN s.data_time WHEN 'forward' THEN s.forward_time ELSE s.other_time END AS cost
    FROM python.steps s JOIN l ON s.pid = l.pid WHERE s.step BETWEEN $first AND $last
)
SELECT step, rank, part, line, cost, GREATEST(cost - seconds, 0.0) AS ref, mb, copies, operation, watched FROM s
