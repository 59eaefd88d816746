-- rule: many-small-operations
-- family: host
-- kind: time
-- part: forward
-- parts: together
-- confidence: likely
-- needs: python.operator_counts.part
-- persistence: 0.9
-- reduce: typical
-- saving: estimate
-- levels: 10, 101, 101
-- line: sampled
-- also: loops, python loops, small operations, small operators, dispatch, vectorize
-- says: {who}: the forward pass calls {calls} operators in each step, of {us} microseconds each, most often {operator}: most of that is what a call costs, whatever it computes{backward} ({watched} steps were watched)
-- do: fewer and larger operations: compute a loop over samples, time steps or heads at once (a further dimension, torch.bmm, torch.func.vmap), or let torch.compile do it
-- record: it is recorded in one of 16 steps at first, and later in one of 64
WITH u AS (
    SELECT pid, MAX(calls) FILTER (WHERE part = 'forward') AS calls, MAX(us) FILTER (WHERE part = 'forward') AS us,
        MAX(large) FILTER (WHERE part = 'forward') AS large,
        MAX(operator) FILTER (WHERE part = 'forward') AS operator, MAX(watched) FILTER (WHERE part = 'forward') AS watched,
        -- What the backward pass does for them.
        MAX(small + 1e-6 * calls) FILTER (WHERE part = 'backward' AND calls >= 400) AS backward
    FROM $operator_calls WHERE part IN ('forward', 'backward') GROUP BY pid
), m AS (
    SELECT pid, median(forward_time) AS forward, median(backward_time) AS backward FROM python.steps WHERE $window GROUP BY pid
), c AS (
    SELECT s.step, s.rank, part.part, u.calls, round(u.us, 1) AS us, u.operator, u.watched,
        CASE WHEN u.backward IS NULL THEN '' ELSE ', and the backward pass through them likewise' END AS backward,
        CASE part.part WHEN 'forward' THEN s.forward_time ELSE s.backward_time END AS cost,
        CASE part.part WHEN 'forward' THEN m.forward ELSE m.backward END AS typical,
        -- Python and torch take a microsecond around each of them at least. What large operators take is no part of it.
        CASE part.part WHEN 'forward' THEN LEAST(u.calls * (u.us + 1.0) * 1e-6, GREATEST(m.forward - u.large, 0.0)) ELSE u.backward END AS small
    FROM python.steps s JOIN u ON s.pid = u.pid JOIN m ON s.pid = m.pid CROSS JOIN (VALUES ('forward'), ('backward')) AS part(part)
    -- On a GPU most operators take the host as long, and the rule host-bound says whether the GPU waits for them.
    WHERE s.step BETWEEN $first AND $last AND s.gpu_idle_max IS NULL AND u.calls >= 400 AND u.us < 12
)
-- Steps of unequal sizes have unequally many.
SELECT step, rank, part, cost, calls, us, operator, watched, backward, GREATEST(cost - LEAST(small, small * cost / typical), 0.0) AS ref
FROM c WHERE small IS NOT NULL AND typical > 0
