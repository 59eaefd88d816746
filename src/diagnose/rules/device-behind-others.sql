-- rule: device-behind-others
-- family: capture
-- kind: fact
-- confidence: likely
-- needs: gpu.kernels.duration >= 50
-- also: straggler, stragglers, slow gpu, imbalance, uneven
-- says: on the GPU of {who}, a step's computation takes {times} times as long as on the others', which may have to wait for it
-- do: look at what that rank has more of (tokens, layers, experts), then at its GPU: gpu.metrics has clocks, temperature and throttling
-- record: probe capture --rank all, or probe import of the traces of all ranks
WITH apart AS (
    -- Stages of a pipeline have different layers, and experts different tokens.
    SELECT DISTINCT run, capture FROM gpu.kernels WHERE category = 'communication' AND regexp_like(concat(COALESCE(collective, ''), name), '(?i)send|recv|alltoall|all_to_all')
), t AS (
    SELECT c.rank, g.computation / GREATEST(c.steps, 1) AS took
    FROM gpu.timeline g JOIN $captures AS c ON g.run = c.run AND g.capture = c.capture LEFT JOIN apart ON c.run = apart.run AND c.capture = apart.capture
    WHERE c.kernels >= 50 AND c.rank IS NOT NULL AND apart.capture IS NULL
)
SELECT a.rank, 'device' AS seen, CASE WHEN a.took >= 1.25 * median(b.took) THEN 'warn' ELSE 'note' END AS severity, a.took / median(b.took) AS times
FROM t a JOIN t b ON a.rank <> b.rank GROUP BY a.rank, a.took HAVING median(b.took) > 0 AND a.took >= 1.1 * median(b.took)
