-- rule: python-in-forward
-- family: host
-- kind: time
-- part: forward
-- confidence: likely
-- needs: python.operator_counts.part
-- persistence: 0.9
-- reduce: typical
-- saving: estimate
-- levels: 10, 25, 50
-- line: sampled
-- also: python, numpy, python in forward
-- says: {who} spends {took:ms} of a step in forward and in no operator of torch's: in Python, or in another library ({watched} steps were watched)
-- do: compute constants once, replace loops over numbers by tensor operations, and do what depends on the sample alone (tokens, hashes) in the Dataset
-- record: it is recorded in one of 16 steps at first, and later in one of 64
SELECT s.step, s.rank, s.forward_time AS cost, s.forward_time * u.share AS took, u.watched,
    s.forward_time - GREATEST(s.forward_time * u.share - 0.001, 0.0) AS ref
FROM python.steps s JOIN $python_share AS u ON s.pid = u.pid AND u.part = 'forward'
WHERE s.step BETWEEN $first AND $last AND u.share > 0
