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
), of_step AS (
    SELECT step, AVG(size) AS mean, MAX(size) AS most, AVG(own) AS own FROM sized GROUP BY step
    HAVING COUNT(*) > 1 AND COUNT(*) = (SELECT COUNT(DISTINCT rank) FROM sized)
), follows AS (
    SELECT corr(s.own / o.own, s.size / o.mean) AS follows, median(o.most / o.mean) - 1 AS more FROM sized s JOIN of_step o ON s.step = o.step
), usual AS (
    -- A rank that has more in the mean is a finding of rank-has-more-data.
    SELECT MAX(size) / AVG(size) AS uneven FROM (SELECT rank, AVG(size) AS size FROM sized GROUP BY rank)
)
SELECT p.step, p.rank, p.part, p.part_time AS cost, p.part_time * LEAST(1.0, o.own / s.own) AS ref, f.more
FROM $part_times AS p JOIN sized s ON p.pid = s.pid AND p.step = s.step JOIN of_step o ON p.step = o.step CROSS JOIN follows f CROSS JOIN usual u
WHERE p.part IN ('data', 'forward', 'backward') AND s.size = o.most AND f.follows >= 0.7 AND f.more >= 0.1 AND u.uneven < 1.1
    AND p.pid NOT IN $pipelined
