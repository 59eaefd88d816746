-- rule: slow-start
-- family: host
-- kind: fact
-- confidence: measured
-- needs: python.environment.torch_version
-- also: startup, start-up, time to first step, compile time, warm-up
-- says: {who}: the tenth step ended {minutes} minutes after training began, which is {share:%} of the run so far
-- do: a compile cache (TORCHINDUCTOR_CACHE_DIR), a data set that reads its index and not its files when it is made, cudnn.benchmark off for the first steps; python.pauses has what was compiled
-- record: steps from 0 on
WITH s AS (
    SELECT pid, rank, MIN(ts) AS begins, MAX(ts) AS ends, MIN(CASE WHEN step >= 10 THEN ts END) AS tenth, MIN(step) AS first
    FROM python.steps WHERE pid IN ($pids) GROUP BY pid, rank
), a AS (
    SELECT pid, MIN(first_seen) AS seen FROM probe.agents GROUP BY pid
), attached AS (
    SELECT pid FROM probe.agents WHERE attached
), t AS (
    SELECT s.*, (CAST(s.tenth AS BIGINT) - CAST(LEAST(COALESCE(a.seen, s.begins), s.begins) AS BIGINT)) / 1e9 AS start, (CAST(s.ends AS BIGINT) - CAST(LEAST(COALESCE(a.seen, s.begins), s.begins) AS BIGINT)) / 1e9 AS whole
    FROM s LEFT JOIN a ON s.pid = a.pid WHERE s.first = 0 AND s.pid NOT IN (SELECT pid FROM attached)
)
SELECT rank, 'start' AS seen, 'note' AS severity, round(start / 60, 1) AS minutes, start / whole AS share FROM t
WHERE start >= 1200 OR start >= 300 AND start >= 0.1 * whole
