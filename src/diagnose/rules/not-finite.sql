-- rule: not-finite
-- family: numerics
-- kind: fact
-- confidence: measured
-- needs: python.metrics.name
-- also: nan, inf, NaN, loss, diverging
-- says: {who}: {subject} is not finite in {times} of {count} values, first seen in step {first}{before}
-- do: torch.autograd.set_detect_anomaly(True) for some steps names the operation; a lower learning rate, clip_grad_norm_, or a look at the batches of that step
-- record: probe_agent.log(loss=loss)
WITH skipped AS (
    SELECT DISTINCT pid, step FROM python.metrics WHERE step <= $last AND pid IN ($pids) AND name = 'torch.amp.skipped_step' AND value > 0
), m AS (
    -- That gradients are not finite in a step that GradScaler skips is how it finds its scale (skipped-steps counts these).
    SELECT m.pid, m.rank, m.step, m.ts, m.name,
        CASE WHEN isnan(m.value) OR abs(m.value) = CAST('Infinity' AS DOUBLE) THEN 1 ELSE 0 END AS bad
    FROM python.metrics m LEFT JOIN skipped ON m.pid = skipped.pid AND m.step = skipped.step
    WHERE m.step <= $last AND m.pid IN ($pids) AND m.value IS NOT NULL AND regexp_like(lower(m.name), 'loss|grad')
        AND (skipped.pid IS NULL OR NOT regexp_like(lower(m.name), 'grad'))
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
