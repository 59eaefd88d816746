-- python.module_profile: One row per module and stage over everything recorded (warm-up too), all ranks together: calls, time with and without the modules inside, percentiles of a call, share of the whole. Calls in captured steps are in all but the percentiles and the longest call.
-- example: SELECT module, stage, calls, own, p50, p95, share, recorded FROM python.module_profile ORDER BY own DESC LIMIT 10
-- example: SELECT module, stage, mean, p99 / p50 AS spread FROM python.module_profile WHERE calls > 1 ORDER BY spread DESC LIMIT 10
WITH profile AS (
    SELECT run, module, module_type, stage, COUNT(*) AS calls, SUM(total_duration) AS total, SUM(duration) AS own,
        AVG(total_duration) AS mean,
        approx_percentile_cont(total_duration, 0.5) FILTER (WHERE captured IS NOT TRUE) AS p50,
        approx_percentile_cont(total_duration, 0.95) FILTER (WHERE captured IS NOT TRUE) AS p95,
        approx_percentile_cont(total_duration, 0.99) FILTER (WHERE captured IS NOT TRUE) AS p99,
        MAX(total_duration) FILTER (WHERE captured IS NOT TRUE) AS longest
    FROM python.torch_trace GROUP BY run, module, module_type, stage
), detailed AS (
    SELECT run, 100.0 * COUNT(*) FILTER (WHERE detail) / COUNT(*) AS recorded FROM python.steps GROUP BY run
)
SELECT
    profile.run AS run,                                            -- text: The run.
    module,                                                        -- text: Qualified name below the root; a root's own row has its class name; NULL for backward work outside every module.
    module_type,                                                   -- text: Class name of the module or optimizer.
    stage,                                                         -- text: forward, backward, step (optimizer), recompute or validation.
    calls,                                                         -- bigint: Recorded intervals.
    total,                                                         -- double, s: Time in it, including the modules called within.
    own,                                                           -- double, s: Time in it without the modules called within; adds up over modules.
    mean,                                                          -- double, s: One call, with the modules called within.
    p50,                                                           -- double, s: Half of the calls took no longer, with the modules called within.
    p95,                                                           -- double, s: 95 % of the calls took no longer; of many calls an approximation (percentile_cont is exact).
    p99,                                                           -- double, s: 99 % of the calls took no longer; of many calls an approximation.
    longest,                                                       -- double, s: The longest call.
    100 * own / NULLIF(SUM(own) OVER (PARTITION BY profile.run), 0) AS share, -- double, %: own, of the own time of all modules and stages.
    recorded                                                       -- double, %: Share of the run's steps whose modules were recorded. calls, total and own cover only these: with detail=auto it may be less than 100. NULL before a step has ended.
FROM profile LEFT JOIN detailed ON profile.run = detailed.run
