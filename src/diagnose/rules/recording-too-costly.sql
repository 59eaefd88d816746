-- rule: recording-too-costly
-- family: record
-- kind: fact
-- confidence: likely
-- needs: probe.overhead.estimated_cost
-- also: recording, probe, overhead, observer
-- says: {who}: recording takes {share:%} of a step by its own reckoning; {allowed} % are allowed
-- do: {remedy}
-- record: an agent reports it every two seconds
WITH o AS (
    SELECT pid, rank, estimated_cost, budget, detail_stride, ROW_NUMBER() OVER (PARTITION BY pid ORDER BY ts DESC) AS newest
    FROM probe.overhead WHERE $window AND estimated_cost IS NOT NULL
), s AS (
    SELECT pid, AVG(duration) AS mean FROM python.steps WHERE $window GROUP BY pid
), share AS (
    -- One row may be of an unusual moment: these are of the last minute. Fewer than five are of less than ten seconds, of which one
    -- hook that a busy machine interrupted is a large part.
    SELECT o.pid, o.rank, median(o.estimated_cost) / MAX(s.mean) AS share, MAX(o.budget) AS budget, MIN(o.detail_stride) AS stride
    FROM o JOIN s ON o.pid = s.pid WHERE o.newest <= 30 GROUP BY o.pid, o.rank HAVING COUNT(*) >= 5
)
SELECT rank, 'recording' AS seen, CASE WHEN share >= 0.1 THEN 'warn' ELSE 'note' END AS severity, share, CAST(round(100 * budget, 1) AS VARCHAR) AS allowed,
    CASE WHEN stride = 1 THEN 'probe config detail=auto records modules in fewer steps' ELSE 'probe config detail=off records steps alone' END AS remedy
FROM share WHERE share >= 2 * budget AND share >= 0.02
