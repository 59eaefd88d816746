-- rule: inference-in-steps
-- family: host
-- kind: time
-- part: validation
-- confidence: measured
-- needs: python.steps.validation_time
-- gate: times >= 3
-- levels: 10, 101, 101
-- saving: ceiling
-- line: sampled
-- explains: periodic-stall, irregular-stall
-- also: generate, generation, sampling, rollout, rollouts, inference
-- says: {who} runs the model in evaluation mode on fewer samples than it trains with, in {times} of these steps: what it generates or plays, training waits for
-- do: generate less often or fewer samples; a policy that has to play first may play on another process, or in several environments at once
WITH calls AS (
    SELECT pid, stage, median(TRY_CAST(split_part(btrim(input_shape, '[] '), ',', 1) AS DOUBLE)) AS samples FROM python.torch_trace
    WHERE $window AND depth = 0 AND stage IN ('forward', 'validation') AND input_shape IS NOT NULL GROUP BY pid, stage
), few AS (
    SELECT v.pid FROM calls v JOIN calls f ON v.pid = f.pid
    WHERE v.stage = 'validation' AND f.stage = 'forward' AND v.samples < 0.5 * f.samples
)
SELECT step, rank, validation_time AS cost, 0.0 AS ref,
    SUM(CASE WHEN validation_time > 0 THEN 1.0 ELSE 0.0 END) OVER (PARTITION BY pid) AS times
FROM python.steps WHERE $window AND pid IN (SELECT pid FROM few)
