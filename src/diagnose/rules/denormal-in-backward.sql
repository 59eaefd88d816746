-- rule: denormal-in-backward
-- family: numerics
-- kind: time
-- part: backward
-- confidence: likely
-- needs: python.torch_trace.module_type
-- least: 20
-- persistence: 0.25
-- gate: times >= 4.5
-- levels: 5, 101, 101
-- explains: odd-sibling, slower-and-slower, slower-than-reference
-- also: denormals, denormal, subnormal, subnormals, flush_denormal
-- says: {who}: the backward of {module} ({module_type}) takes {took:ms} of computing and its forward {forth:ms}, and it needs no more than twice as many operations: inputs or gradients below 1e-38 (denormals) take a processor a hundred times longer
-- do: torch.set_flush_denormal(True) at the start, as a test. If it helps, find what makes inputs or gradients of {module} so small (an exponential, a scale, a decay)
-- record: probe config detail=every-step
WITH e AS (
    -- Where gradients are reduced, a module may wait for that on the way back; and half precision is slow there on many processors.
    SELECT pid FROM python.environment WHERE pid IN ($pids) AND device IS NOT NULL GROUP BY pid
    HAVING bool_and(wrapper IS NULL AND autocast IS NOT TRUE AND parameter_dtype IN ('float32', 'float64'))
), s AS (
    SELECT * FROM $cpu_steps AS c WHERE pid IN (SELECT pid FROM e)
), m AS (
    SELECT pid, step, module, module_type, SUM(CASE WHEN stage = 'forward' THEN duration END) AS forward,
        SUM(CASE WHEN stage = 'backward' THEN duration END) AS backward
    FROM python.torch_trace WHERE $window AND stage IN ('forward', 'backward') AND module_type = 'Linear'
    GROUP BY pid, step, module, module_type
    HAVING SUM(CASE WHEN stage = 'forward' THEN 1 ELSE 0 END) = SUM(CASE WHEN stage = 'backward' THEN 1 ELSE 0 END)
), usual AS (
    -- What a call costs is more backward than forward, and counts in small modules.
    SELECT pid, module, median(forward) AS forward FROM m GROUP BY pid, module
    HAVING median(backward) >= 0.0005 AND median(forward) > 0 AND AVG(backward) >= 3 * median(forward)
)
SELECT s.step, s.rank, m.module, m.module_type, m.backward AS cost, LEAST(m.backward, 2 * usual.forward) AS ref,
    m.backward * s.computes / usual.forward AS times, m.backward * s.computes AS took, usual.forward AS forth
FROM s JOIN m ON s.pid = m.pid AND s.step = m.step JOIN usual ON m.pid = usual.pid AND m.module = usual.module
WHERE m.backward IS NOT NULL
