-- rule: not-finite
-- family: numerics
-- kind: fact
-- confidence: measured
-- needs: python.metrics.name
-- also: nan, inf, NaN, loss, diverging
-- says: {who}: {subject} is not finite in {times} of {count} values, first seen in step {first}{before}
-- do: torch.autograd.set_detect_anomaly(True) for some steps names the operation; a lower learning rate, clip_grad_norm_, or a look at the batches of that step
-- record: probe_agent.log(loss=loss)
WITH m AS (
    SELECT pid, rank, step, ts, name, CASE WHEN isnan(value) OR abs(value) = CAST('Infinity' AS DOUBLE) THEN 1 ELSE 0 END AS bad
    FROM python.metrics WHERE step <= $last AND pid IN ($pids) AND value IS NOT NULL AND regexp_like(lower(name), 'loss|grad')
), f AS (
    SELECT *, MAX(CASE WHEN bad = 0 THEN step END) OVER (PARTITION BY pid, rank, name) AS fine FROM m
), n AS (
    -- What was not finite before these steps, and is finite again, is over: a GradScaler begins so.
    SELECT pid, rank, name, SUM(bad) FILTER (WHERE step >= $first) AS times, COUNT(*) FILTER (WHERE step >= $first) AS count,
        MIN(step) FILTER (WHERE bad = 1 AND step > COALESCE(fine, -1)) AS since, COUNT(*) FILTER (WHERE bad = 1 AND step > COALESCE(fine, -1)) AS ever_since,
        MIN(step) FILTER (WHERE bad = 1 AND step >= $first) AS first, MAX(fine) AS fine
    FROM f GROUP BY pid, rank, name
)
-- A loss that never becomes finite again is the end of the training, whatever else is slow.
SELECT rank, name AS subject, times, count, COALESCE(since, first) AS first,
    CASE WHEN since IS NULL THEN 'note' WHEN ever_since >= 3 AND regexp_like(lower(name), 'loss') THEN 'critical' ELSE 'warn' END AS severity,
    CASE WHEN fine < since THEN concat(' (finite in step ', fine, ')') ELSE '' END AS before
FROM n WHERE times > 0
