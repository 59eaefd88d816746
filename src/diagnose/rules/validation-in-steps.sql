-- rule: validation-in-steps
-- family: host
-- kind: time
-- part: validation
-- confidence: measured
-- needs: python.steps.validation_time
-- gate: times >= 3
-- levels: 10, 25, 101
-- saving: ceiling
-- explains: periodic-stall, irregular-stall
-- also: eval, evaluation
-- says: {who} validates {times} times within these steps, and training waits for it
-- do: validate less often or on fewer batches, or in a process of its own
WITH calls AS (
    SELECT pid, stage, median(TRY_CAST(split_part(btrim(input_shape, '[] '), ',', 1) AS DOUBLE)) AS samples FROM python.torch_trace
    WHERE $window AND depth = 0 AND stage IN ('forward', 'validation') AND input_shape IS NOT NULL GROUP BY pid, stage
), plays AS (
    -- A policy that plays, or a model that writes, is asked without gradients for fewer samples than it learns from: rule inference-in-steps.
    SELECT v.pid FROM calls v JOIN calls f ON v.pid = f.pid
    WHERE v.stage = 'validation' AND f.stage = 'forward' AND v.samples < 0.5 * f.samples
)
SELECT step, rank, validation_time AS cost, 0.0 AS ref,
    SUM(CASE WHEN validation_time > 0 THEN 1.0 ELSE 0.0 END) OVER (PARTITION BY pid) AS times
FROM python.steps WHERE $window AND pid NOT IN (SELECT pid FROM plays)
