-- rule: denormal-numbers
-- family: numerics
-- kind: time
-- part: forward
-- confidence: likely
-- needs: python.torch_trace.module_type
-- least: 20
-- persistence: 0.25
-- gate: times >= 10
-- levels: 5, 10, 25
-- explains: odd-sibling, slower-and-slower, slower-than-reference
-- also: denormals, denormal, subnormal, subnormals, flush_denormal
-- says: {who}: the forward of {module} ({module_type}) takes {took:ms} of computing and its backward {back:ms}, and they need about as many operations: numbers below 1e-38 (denormals) take a processor a hundred times longer
-- do: torch.set_flush_denormal(True) at the start, as a test. If it helps, find what makes weights or inputs of {module} so small (decay, initialization, a scale); otherwise look at its hooks
-- record: probe config detail=every-step
WITH s AS (
    SELECT * FROM $cpu_steps AS c
), m AS (
    -- The multiplications of a module of torch's own are as many backward as forward, and twice as many where its input has a gradient.
    SELECT pid, step, module, module_type, SUM(CASE WHEN stage = 'forward' THEN duration END) AS forward,
        SUM(CASE WHEN stage = 'backward' THEN duration END) AS backward
    FROM python.torch_trace WHERE $window AND stage IN ('forward', 'backward')
        AND module_type IN ('Linear', 'Conv1d', 'Conv2d', 'Conv3d', 'ConvTranspose1d', 'ConvTranspose2d', 'ConvTranspose3d')
    GROUP BY pid, step, module, module_type
    -- Of a policy that plays without gradients, few of the calls have a backward pass.
    HAVING SUM(CASE WHEN stage = 'forward' THEN 1 ELSE 0 END) <= SUM(CASE WHEN stage = 'backward' THEN 1 ELSE 0 END)
), usual AS (
    -- Of modules that stay far below the gate, rows of each step would take long and say nothing.
    SELECT pid, module, median(backward) AS backward FROM m GROUP BY pid, module
    HAVING median(backward) > 0 AND AVG(forward) >= 5 * median(backward)
), waits AS (
    SELECT s.pid FROM python.steps s JOIN python.environment e ON s.pid = e.pid
    WHERE s.step BETWEEN $first AND $last AND s.pid IN ($pids) AND e.torch_threads > 1 AND s.run_delay IS NOT NULL
    GROUP BY s.pid HAVING SUM(s.run_delay) >= 0.1 * SUM(s.duration)
)
SELECT s.step, s.rank, m.module, m.module_type, m.forward AS cost, usual.backward AS ref,
    m.forward * s.computes / usual.backward AS times, m.forward * s.computes AS took, usual.backward AS back
FROM s JOIN m ON s.pid = m.pid AND s.step = m.step JOIN usual ON m.pid = usual.pid AND m.module = usual.module
-- Threads that compute together wait for one another where neighbours have processors.
WHERE m.forward IS NOT NULL AND s.pid NOT IN (SELECT pid FROM waits)
