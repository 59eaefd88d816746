-- rule: slow-for-a-while
-- family: regression
-- kind: fact
-- confidence: measured
-- also: slow phase, slow steps, slowdown
-- says: {who}: from step {since} to {until} a step took {slow} ms, before that {before} ms and after it {after} ms
-- do: probe diagnose --steps {since}..{until} looks at those alone, and --against with the steps before compares them
WITH s AS (
    SELECT pid, rank, step, duration - COALESCE(validation_time, 0) - COALESCE(checkpoint_time, 0) AS duration, COALESCE(run_delay, 0) / duration AS waits, NTILE(24) OVER (PARTITION BY pid ORDER BY step) AS block
    FROM python.steps WHERE $window AND duration > 0 AND kind IS DISTINCT FROM 'call'
), b AS (
    SELECT pid, rank, block, MIN(step) AS since, MAX(step) AS until, median(duration) AS duration, AVG(waits) AS waits, COUNT(*) AS count
    FROM s GROUP BY pid, rank, block
), usual AS (
    SELECT pid, median(duration) AS usual, median(waits) AS waits FROM b GROUP BY pid
), judged AS (
    -- By a third, and not by neighbours that had the processors meanwhile.
    SELECT b.*, b.duration >= 1.33 * usual.usual AND b.waits - usual.waits < 0.05 AS is_slow
    FROM b JOIN usual ON b.pid = usual.pid
), islands AS (
    SELECT *, block - ROW_NUMBER() OVER (PARTITION BY pid, is_slow ORDER BY block) AS island FROM judged
), phase AS (
    -- One that lasts to the end is a change, and one that lasts from the beginning is a slow start.
    SELECT pid, rank, MIN(since) AS since, MAX(until) AS until, MIN(block) AS first, MAX(block) AS last, AVG(duration) AS slow, COUNT(*) AS blocks
    FROM islands WHERE is_slow GROUP BY pid, rank, island
    HAVING MIN(block) > 1 AND MAX(block) < 24 AND COUNT(*) >= 3 AND MIN(count) >= 4
), compared AS (
    SELECT p.pid, p.rank, p.since, p.until, p.slow, p.blocks, median(b.duration) FILTER (WHERE b.block < p.first) AS before,
        median(b.duration) FILTER (WHERE b.block > p.last) AS after
    FROM phase p JOIN b ON p.pid = b.pid GROUP BY p.pid, p.rank, p.since, p.until, p.slow, p.blocks
)
SELECT rank, 'slow phase' AS seen, 'note' AS severity, CAST(since AS VARCHAR) AS since, CAST(until AS VARCHAR) AS until,
    CAST(round(1000 * slow, 1) AS VARCHAR) AS slow, CAST(round(1000 * before, 1) AS VARCHAR) AS before, CAST(round(1000 * after, 1) AS VARCHAR) AS after
FROM (
    SELECT *, ROW_NUMBER() OVER (PARTITION BY pid ORDER BY blocks DESC, since) AS place FROM compared
    -- Where steps take as long before it or after it, it is part of a change.
    WHERE slow >= 1.33 * GREATEST(before, after)
) WHERE place = 1
