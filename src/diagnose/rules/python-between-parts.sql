-- rule: python-between-parts
-- family: host
-- kind: time
-- part: other
-- confidence: likely
-- needs: python.operator_counts.part
-- persistence: 0.9
-- reduce: typical
-- saving: estimate
-- levels: 5, 101, 101
-- line: sampled
-- also: hashing, json, python between parts
-- says: {who} spends {took:ms} of a step outside of data, forward, backward and optimizer and in no operator of torch's: in Python, or in another library ({watched} steps were watched)
-- do: move that work into the Dataset, whose workers do it beside training, or to another thread, or do it every n steps
-- record: it is recorded in one of 16 steps at first, and later in one of 64
SELECT s.step, s.rank, s.other_time AS cost, s.other_time * u.share AS took, u.watched,
    -- A millisecond and 5 % of a step are usual, less what the thread waits for a processor, as in the share.
    s.other_time - GREATEST(s.other_time * u.share - (0.001 + 0.00025 * GREATEST(s.micro_steps - 1, 0)) - 0.05 * (s.duration - COALESCE(s.run_delay, 0.0)), 0.0) AS ref,
    s.other_time - GREATEST(s.other_time * u.share - 0.0002 - 0.03 * (s.duration - COALESCE(s.run_delay, 0.0)), 0.0) AS expected
FROM python.steps s JOIN $python_share AS u ON s.pid = u.pid AND u.part = 'other'
WHERE s.step BETWEEN $first AND $last AND u.share > 0
