-- rule: skipped-steps
-- family: numerics
-- kind: fact
-- confidence: measured
-- needs: python.metrics.name
-- also: GradScaler, grad scaler, amp
-- says: {who}: GradScaler skipped {share:%} of the steps of optimizers: their gradients were not finite
-- do: bfloat16 needs no scaler; else a lower learning rate, or GradScaler(growth_interval=…) larger, so that the scale is tried less often
-- record: it is noted where a GradScaler is used with an optimizer that is not fused
WITH m AS (
    SELECT pid, rank, AVG(value) AS share, COUNT(*) AS count FROM python.metrics
    WHERE $window AND name = 'torch.amp.skipped_step' GROUP BY pid, rank
)
SELECT rank, 'skipped' AS seen, CASE WHEN share >= 0.5 THEN 'warn' ELSE 'note' END AS severity, share, count FROM m
WHERE count >= 40 AND share >= 0.05
