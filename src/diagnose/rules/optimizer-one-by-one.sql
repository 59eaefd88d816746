-- rule: optimizer-one-by-one
-- family: device
-- kind: fact
-- confidence: likely
-- needs: python.environment.optimizer_foreach
-- also: foreach, fused, fused optimizer
-- says: {who} updates parameters one by one on a device (foreach=False): the optimizer takes {share:%} of the steps
-- do: {optimizer}(…, fused=True), or leave foreach out
-- record: it is noted of an optimizer that is given foreach
WITH e AS (
    SELECT * FROM $newest_environment
), s AS (
    SELECT pid, SUM(optimizer_time) / SUM(duration) AS share, COUNT(*) AS steps FROM python.steps WHERE $window GROUP BY pid
)
SELECT e.rank, 'foreach' AS seen, CASE WHEN s.share >= 0.25 THEN 'warn' ELSE 'note' END AS severity, e.optimizer, s.share FROM e JOIN s ON e.pid = s.pid
WHERE NOT e.optimizer_foreach AND e.optimizer_fused IS NOT TRUE AND e.device <> 'cpu' AND s.share >= 0.1 AND s.steps >= 40
