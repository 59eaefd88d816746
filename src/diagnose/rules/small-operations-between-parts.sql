-- rule: small-operations-between-parts
-- family: host
-- kind: time
-- part: other
-- confidence: likely
-- needs: python.operator_counts.part
-- persistence: 0.9
-- reduce: typical
-- saving: estimate
-- levels: 7, 20, 40
-- line: sampled
-- explains: work-between-parts, span-between-parts, python-between-parts
-- also: ema, moving average, averaged weights, loops over parameters
-- says: {who} calls {calls} operators in each step outside of data, forward, backward and optimizer, of {us} microseconds each, most often {operator}: most of that is what a call costs, whatever it computes ({watched} steps were watched)
-- do: {remedy}
-- record: it is recorded in one of 16 steps at first, and later in one of 64
SELECT s.step, s.rank, s.other_time AS cost, u.calls, round(u.us, 1) AS us, u.operator, u.watched,
    CASE
        WHEN u.operator = 'aten::item' THEN 'compute on whole tensors and read the result once (.item() or .tolist()), or every n steps'
        WHEN u.operator = 'aten::select' THEN 'compute on whole tensors instead of looping over their rows, or every n steps'
        WHEN u.operator IN ('aten::lerp_', 'aten::lerp', 'aten::mul_', 'aten::mul', 'aten::add_', 'aten::add', 'aten::copy_',
                'aten::sub_', 'aten::sub', 'aten::clone', 'aten::detach')
            THEN 'do it for all parameters at once (torch._foreach_lerp_; AveragedModel''s multi_avg_fn for a moving average of '
                || 'weights), or every n steps'
        ELSE 'do it for all items at once instead of one by one, or every n steps' END AS remedy,
    -- A loop of Python takes about 3 microseconds around each of them (a moving average of 80 parameters: 3.9).
    GREATEST(s.other_time - u.calls * (u.us + 3.0) * 1e-6, 0.0)
        -- Each further call of the model, as of a policy that plays, has a loop around it.
        + 0.00025 * GREATEST(s.micro_steps - 1, 0) AS ref
FROM python.steps s JOIN $operator_calls AS u ON s.pid = u.pid AND u.part = 'other'
-- On a GPU most operators take the host as long, and the rule host-bound says whether the GPU waits for them.
WHERE s.step BETWEEN $first AND $last AND s.gpu_idle_max IS NULL AND u.calls >= 100 AND u.us < 12
