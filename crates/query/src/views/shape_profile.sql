-- python.shape_profile: One row per input shape of the model, module and stage: what a call took with inputs of that shape. Where shapes vary, compare within a shape, not over all of them. Calls in captured steps are in all but the percentiles.
-- example: SELECT input_shape, module, stage, calls, p50, share FROM python.shape_profile ORDER BY input_shape, own DESC LIMIT 20
-- example: SELECT input_shape, SUM(own) / MAX(steps) AS seconds_per_step FROM python.shape_profile GROUP BY input_shape ORDER BY seconds_per_step DESC
WITH given AS (
    SELECT run, host, pid, step, micro_step, stage = 'validation' AS validates,
        first_value(input_shape ORDER BY ts) AS input_shape
    FROM python.torch_trace WHERE stage IN ('forward', 'validation') AND input_shape IS NOT NULL
    GROUP BY run, host, pid, step, micro_step, validates
)
SELECT
    trace.run AS run,                                       -- text: The run.
    given.input_shape AS input_shape,                       -- text: Shape of the first tensor that the outermost module was called with: [32, 128].
    module,                                                 -- text: Qualified name below the root; NULL for backward work outside every module.
    module_type,                                            -- text: Class name of the module or optimizer.
    stage,                                                  -- text: forward, backward, step (optimizer), recompute or validation.
    COUNT(*) AS calls,                                      -- bigint: Recorded intervals: with detail=auto only those of steps whose modules were recorded (recorded of python.module_profile).
    COUNT(DISTINCT trace.step) AS steps,                    -- bigint: Steps they were in.
    SUM(trace.duration) AS own,                             -- double, s: Time in it in these calls, without the modules called within.
    AVG(trace.total_duration) AS mean,                      -- double, s: One call, with the modules called within.
    approx_percentile_cont(trace.total_duration, 0.5) FILTER (WHERE captured IS NOT TRUE) AS p50, -- double, s: Half of the calls took no longer.
    approx_percentile_cont(trace.total_duration, 0.95) FILTER (WHERE captured IS NOT TRUE) AS p95, -- double, s: 95 % of the calls took no longer; of many calls an approximation.
    100 * SUM(trace.duration) / NULLIF(SUM(SUM(trace.duration)) OVER (PARTITION BY trace.run, given.input_shape), 0) AS share -- double, %: own, of the own time of all modules and stages with this shape.
FROM python.torch_trace trace JOIN given
    ON trace.run = given.run AND trace.host = given.host AND trace.pid = given.pid
    AND trace.step = given.step AND trace.micro_step = given.micro_step AND (trace.stage = 'validation') = given.validates
GROUP BY trace.run, given.input_shape, module, module_type, stage
