-- rule: device-behind-others
-- family: capture
-- kind: fact
-- confidence: likely
-- needs: gpu.kernels.duration >= 50
-- also: straggler, stragglers, slow gpu, imbalance, uneven
-- says: {who}: its GPU computes {times} times as long in {capture} as the others' GPUs in theirs, and they wait for it
-- do: look at what that rank has more of (tokens, layers, experts), then at its GPU: gpu.metrics has clocks, temperature and throttling
-- record: probe capture --rank all, or probe import of the traces of all ranks
WITH t AS (
    SELECT c.capture, c.rank, g.computation / GREATEST(c.steps, 1) AS took
    FROM gpu.timeline g JOIN $captures AS c ON g.run = c.run AND g.capture = c.capture WHERE c.kernels >= 50 AND c.rank IS NOT NULL
)
SELECT a.rank, 'device' AS seen, CASE WHEN a.took >= 1.25 * median(b.took) THEN 'warn' ELSE 'note' END AS severity, a.capture, a.took / median(b.took) AS times
FROM t a JOIN t b ON a.rank <> b.rank GROUP BY a.rank, a.capture, a.took HAVING median(b.took) > 0 AND a.took >= 1.1 * median(b.took)
