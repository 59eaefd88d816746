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
    FROM python.metrics WHERE $window AND value IS NOT NULL AND regexp_like(lower(name), 'loss|grad')
), n AS (
    SELECT pid, rank, name, SUM(bad) AS times, COUNT(*) AS count, MIN(CASE WHEN bad = 1 THEN step END) AS first,
        MAX(CASE WHEN bad = 0 THEN step END) AS fine, MAX(step) AS last
    FROM m GROUP BY pid, rank, name
)
-- A loss that never becomes finite again is the end of the training, whatever else is slow.
SELECT rank, name AS subject, times, count, first,
    CASE WHEN fine >= last THEN 'note' WHEN times >= 3 AND COALESCE(fine, -1) < first AND regexp_like(lower(name), 'loss') THEN 'critical' ELSE 'warn' END AS severity,
    CASE WHEN fine < first THEN concat(' (finite in step ', fine, ')') ELSE '' END AS before
FROM n WHERE times > 0
