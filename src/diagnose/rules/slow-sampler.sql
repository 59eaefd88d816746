-- rule: slow-sampler
-- family: data
-- kind: time
-- part: data
-- confidence: likely
-- needs: python.stack_samples.function
-- persistence: 0.5
-- levels: 5, 10, 20
-- line: sampled
-- explains: loader-starved, slower-than-reference
-- also: sampler, batch sampler, shuffle, data loading
-- says: {who}: the training thread runs the loader's sampler ({function}) for {share:%} of the time in which it waits for batches: torch does so with workers too
-- do: draw the indices of a whole epoch at once (torch.randperm, NumPy), and only cut them into batches in the sampler
-- record: probe diagnose --ask samples a live run
WITH iterable AS (
    SELECT pid FROM python.environment WHERE pid IN ($pids) AND sampler = '_InfiniteConstantSampler' GROUP BY pid
), sampled AS (
    SELECT pid, MAX(function) FILTER (WHERE function LIKE '%.__iter__') AS function,
        CAST(COUNT(*) FILTER (WHERE function LIKE '%.__iter__') AS DOUBLE) / COUNT(*) AS share
    FROM python.stack_samples WHERE $window AND part = 'data' GROUP BY pid HAVING COUNT(*) >= 10
)
SELECT s.step, s.rank, s.data_time AS cost, (1 - share) * s.data_time AS ref, function, share
-- Of an iterable dataset, and of what is no DataLoader, it is the data set's own loop.
FROM python.steps s JOIN sampled ON s.pid = sampled.pid
WHERE s.step BETWEEN $first AND $last AND share >= 0.5 AND s.pid NOT IN (SELECT pid FROM iterable)
    AND s.pid IN (SELECT pid FROM python.data_trace WHERE $window AND num_workers IS NOT NULL GROUP BY pid)
