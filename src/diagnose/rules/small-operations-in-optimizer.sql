-- rule: small-operations-in-optimizer
-- family: host
-- kind: time
-- part: optimizer
-- confidence: likely
-- needs: python.operator_counts.part
-- persistence: 0.9
-- reduce: typical
-- saving: estimate
-- levels: 15, 101, 101
-- line: sampled
-- also: optimizer, foreach, fused, loops over parameters
-- says: {who}: the optimizer calls {calls} operators in each step, of {us} microseconds each, most often {operator}: most of that is what a call costs, whatever it computes ({watched} steps were watched)
-- do: compute on all parameters at once (torch._foreach_mul_, torch._foreach_addcdiv_), or take one of torch's with fused=True
-- record: it is recorded in one of 16 steps at first, and later in one of 64
SELECT s.step, s.rank, s.optimizer_time AS cost, u.calls, round(u.us, 1) AS us, u.operator, u.watched,
    -- Python takes about 2 microseconds around each of them.
    GREATEST(s.optimizer_time - u.calls * (u.us + 2.0) * 1e-6, 0.0) AS ref
FROM python.steps s JOIN $operator_calls AS u ON s.pid = u.pid AND u.part = 'optimizer' JOIN $newest_environment AS e ON s.pid = e.pid
-- Torch's own optimizers do this on the host unless they are given foreach or fused, in healthy programs too.
-- On a GPU most operators take the host as long, and the rule host-bound says whether the GPU waits for them.
WHERE s.step BETWEEN $first AND $last AND s.gpu_idle_max IS NULL AND u.calls >= 400 AND u.us < 12
    AND e.optimizer NOT IN ('ASGD', 'Adadelta', 'Adafactor', 'Adagrad', 'Adam', 'AdamW', 'Adamax', 'LBFGS', 'Muon', 'NAdam', 'RAdam', 'RMSprop', 'Rprop', 'SGD', 'SparseAdam')
