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
-- says: {who}: the training thread runs the loader's sampler ({function}) for {share:%} of the time in which it waits for batches; more workers do not help, because the sampler runs there with workers too
-- do: draw the indices of an epoch by torch.randperm or NumPy in place of Python (random.shuffle), and only cut them into batches in the sampler
-- record: probe diagnose --ask samples a live run
SELECT s.step, s.rank, s.data_time AS cost, (1 - u.share) * s.data_time AS ref, u.function, u.share
FROM python.steps s JOIN $sampler_share AS u ON s.pid = u.pid WHERE s.step BETWEEN $first AND $last AND u.share >= 0.5
