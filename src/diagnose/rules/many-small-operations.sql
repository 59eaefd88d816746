-- rule: many-small-operations
-- family: host
-- kind: time
-- part: forward
-- confidence: likely
-- needs: python.operator_counts.part
-- persistence: 0.9
-- reduce: typical
-- saving: estimate
-- levels: 10, 101, 101
-- line: sampled
-- also: loops, python loops, small operations, small operators, dispatch, vectorize
-- says: {who}: the forward pass calls {calls} operators in each step, of {us} microseconds each, most often {operator}: most of that is what a call costs, whatever it computes ({watched} steps were watched)
-- do: fewer and larger operations: compute a loop over samples, time steps or heads at once (a further dimension, torch.bmm, torch.func.vmap), or let torch.compile do it
-- record: it is recorded in one step of 64 of those with detail
SELECT s.step, s.rank, s.forward_time AS cost, u.calls, round(u.us, 1) AS us, u.operator, u.watched,
    -- Python and torch take a microsecond around each of them at least. Steps of unequal sizes have unequally many.
    GREATEST(s.forward_time - LEAST(u.calls, u.calls * s.forward_time / m.forward_time) * (u.us + 1.0) * 1e-6, 0.0) AS ref
FROM python.steps s JOIN $operator_calls AS u ON s.pid = u.pid AND u.part = 'forward'
    JOIN (SELECT pid, median(forward_time) AS forward_time FROM python.steps WHERE $window GROUP BY pid) AS m ON m.pid = s.pid
-- On a GPU most operators take the host as long, and the rule host-bound says whether the GPU waits for them.
WHERE s.step BETWEEN $first AND $last AND s.gpu_idle_max IS NULL AND m.forward_time > 0 AND u.calls >= 400 AND u.us < 12
