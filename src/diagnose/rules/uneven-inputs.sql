-- rule: uneven-inputs
-- family: communication
-- kind: time
-- parts: together
-- confidence: likely
-- needs: python.torch_trace.input_shape
-- least: 8
-- explains: input-size, slower-than-reference
-- also: length imbalance, sequence length, uneven lengths, variable length, bucketing, imbalance, stragglers, load imbalance
-- says: the ranks take turns in having the largest input of a step: it is {more:%} larger than the mean of the ranks, and all wait for the rank that has it
-- do: give all ranks inputs of similar size in the same step: sort or bucket samples by length before they are distributed (one bucket a step for all ranks), or fill batches by tokens instead of samples
-- record: probe config detail=every-step
WITH sized AS (
    SELECT s.pid, s.rank, s.step, input.size, s.duration - s.comm_time AS own FROM python.steps s
    JOIN $input_size AS input ON s.pid = input.pid AND s.step = input.step WHERE s.rank IS NOT NULL AND s.duration > s.comm_time
), complete AS (
    -- The steps in which the size is known of every rank.
    SELECT *, AVG(size) OVER (PARTITION BY step) AS mean, MAX(size) OVER (PARTITION BY step) AS most, AVG(own) OVER (PARTITION BY step) AS mean_own,
        AVG(size) OVER (PARTITION BY rank) AS usual
    FROM (SELECT *, COUNT(*) OVER (PARTITION BY step) AS ranks FROM sized) AS counted
    WHERE ranks > 1 AND ranks = (SELECT COUNT(DISTINCT rank) FROM sized)
), follows AS (
    SELECT corr(own / mean_own, size / mean) AS follows, median(most / mean) - 1 AS more, MAX(usual) / AVG(usual) AS uneven FROM complete
)
SELECT p.step, p.rank, p.part, p.part_time AS cost, p.part_time * LEAST(1.0, s.mean_own / s.own) AS ref, f.more
FROM $part_times AS p JOIN complete s ON p.pid = s.pid AND p.step = s.step CROSS JOIN follows f
-- A rank that has more in the mean of these steps is a finding of rank-has-more-data.
WHERE p.part IN ('data', 'forward', 'backward') AND s.size = s.most AND f.follows >= 0.7 AND f.more >= 0.1 AND f.uneven < 1.1
    AND p.pid NOT IN $pipelined
