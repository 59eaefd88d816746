-- rule: validation-in-steps
-- family: host
-- kind: time
-- part: validation
-- confidence: measured
-- needs: python.steps.validation_time
-- record: agents of this version record it with each step
-- gate: times >= 3
-- levels: 10, 25, 101
-- saving: ceiling
-- explains: periodic-stall, irregular-stall
-- also: eval, evaluation
-- says: {who} validates {times} times within these steps, and training waits for it
-- do: validate less often or on fewer batches, or in a process of its own
SELECT step, rank, validation_time AS cost, 0.0 AS ref,
    SUM(CASE WHEN validation_time > 0 THEN 1.0 ELSE 0.0 END) OVER (PARTITION BY pid) AS times
FROM python.steps WHERE $window AND pid NOT IN $few_samples
