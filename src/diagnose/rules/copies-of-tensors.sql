-- rule: copies-of-tensors
-- family: host
-- kind: time
-- confidence: likely
-- needs: python.copies.part
-- persistence: 0.9
-- reduce: typical
-- levels: 5, 15, 30
-- saving: ceiling
-- explains: work-between-parts, span-between-parts, slower-than-reference
-- also: copies, copying, contiguous
-- says: {who} copies {mb} MB of tensors in each step, in {part}, at {line} (calls of {operation}: {copies}; {watched} steps were watched)
-- do: copy them once before the loop, or keep the layout that is needed
-- record: it is recorded in one of 16 steps at first, and later in one of 64
WITH part_times AS (
    SELECT pid, rank, step, part, part_time FROM $part_times AS t
    WHERE pid IN ($pids) AND step BETWEEN GREATEST($first - 128, 8) AND $last AND part IN ('data', 'forward', 'other')
), each AS (
    -- Their share of the part, because the machine may be quicker or slower in the few watched steps than in the others.
    SELECT c.pid, c.part, c.file, c.line, c.operation, c.step, COUNT(*) AS copies, SUM(c.bytes) / 1e6 AS mb,
        LEAST(SUM(c.duration) / NULLIF(MAX(p.part_time), 0.0), 1.0) AS share
    FROM python.copies c JOIN part_times p ON c.pid = p.pid AND c.step = p.step AND c.part = p.part WHERE c.file IS NOT NULL
    GROUP BY c.pid, c.part, c.file, c.line, c.operation, c.step
), o AS (
    -- Few steps are watched, so those of the warm-up count, too; and in one of them the thread may have lost its processor in the middle of a copy.
    SELECT pid, part, file, line, operation, COUNT(*) AS watched, median(copies) AS copies, median(mb) AS mb,
        CASE WHEN COUNT(*) >= 3 THEN median(share) ELSE MIN(share) END AS share
    FROM each GROUP BY pid, part, file, line, operation HAVING COUNT(*) >= 2
), l AS (
    SELECT pid, part, concat(file, ':', CAST(line AS VARCHAR)) AS line, LEAST(SUM(share), 1.0) AS share, SUM(mb) AS mb,
        first_value(operation ORDER BY share DESC) AS operation, first_value(copies ORDER BY share DESC) AS copies, MAX(watched) AS watched
    FROM o GROUP BY pid, part, file, line
)
SELECT p.step, p.rank, p.part, l.line, p.part_time AS cost, p.part_time * (1.0 - l.share) AS ref, l.mb, l.copies, l.operation, l.watched
FROM part_times p JOIN l ON p.pid = l.pid AND p.part = l.part WHERE p.step BETWEEN $first AND $last
