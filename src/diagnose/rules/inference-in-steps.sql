-- rule: inference-in-steps
-- family: host
-- kind: time
-- part: validation
-- confidence: measured
-- needs: python.steps.validation_time
-- record: agents of this version record it with each step
-- gate: times >= 3
-- levels: 10, 101, 101
-- saving: ceiling
-- line: sampled
-- explains: periodic-stall, irregular-stall
-- also: generate, generation, sampling, rollout, rollouts, inference
-- says: {who} runs the model in evaluation mode on fewer samples than it trains with, in {times} of these steps: training waits for what it generates or plays
-- do: generate less often or fewer samples; a policy that has to play first may play on another process, or in several environments at once
SELECT step, rank, validation_time AS cost, 0.0 AS ref,
    SUM(CASE WHEN validation_time > 0 THEN 1.0 ELSE 0.0 END) OVER (PARTITION BY pid) AS times
FROM python.steps WHERE $window AND pid IN $few_samples
