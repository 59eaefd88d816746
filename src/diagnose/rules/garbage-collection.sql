-- rule: garbage-collection
-- family: host
-- kind: time
-- parts: together
-- confidence: measured
-- needs: python.steps.gc_time
-- explains: periodic-stall, irregular-stall, work-between-parts, span-between-parts, rank-slow, slower-than-reference
-- also: gc, garbage
-- says: {who} collects garbage {collections} times in these steps, for {each:ms} on average
-- do: leave out gc.collect() where the loop calls it; gc.freeze() when model and data are there, so that they are not searched again; or gc.disable() and gc.collect() each n steps, on all ranks in the same step
-- record: PROBE_LAYERS must not leave out pauses
WITH p AS (
    SELECT pid, rank, step, part, SUM(duration) AS cost, COUNT(*) AS times FROM python.pauses
    WHERE $window AND kind = 'garbage collection' GROUP BY pid, rank, step, part
), parts AS (
    SELECT pid, rank, part, SUM(SUM(times)) OVER (PARTITION BY pid) AS collections,
        SUM(SUM(cost)) OVER (PARTITION BY pid) / SUM(SUM(times)) OVER (PARTITION BY pid) AS each
    FROM p GROUP BY pid, rank, part
)
SELECT s.step, s.rank, parts.part, COALESCE(p.cost, 0.0) AS cost, 0.0 AS ref, parts.collections, parts.each
FROM python.steps s JOIN parts ON s.pid = parts.pid LEFT JOIN p ON s.pid = p.pid AND s.step = p.step AND p.part = parts.part
WHERE s.step BETWEEN $first AND $last AND s.pid IN ($pids)
