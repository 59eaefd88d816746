-- python.module_profile: One row per module and stage over everything recorded, all ranks together: calls, time with and without the modules within, percentiles of a call, share of the whole.
-- example: SELECT module, stage, calls, own, p50, p95, share FROM python.module_profile ORDER BY own DESC LIMIT 10
-- example: SELECT module, stage, mean, p99 / p50 AS spread FROM python.module_profile WHERE calls > 1 ORDER BY spread DESC LIMIT 10
SELECT
    run,                                                           -- text: The run.
    module,                                                        -- text: Qualified name below the root; a root's own row has its class name; NULL for backward work outside every module.
    module_type,                                                   -- text: Class name of the module or optimizer.
    stage,                                                         -- text: forward, backward, step (optimizer), recompute or validation.
    COUNT(*) AS calls,                                             -- bigint: Recorded intervals.
    SUM(total_duration) AS total,                                  -- double, s: Time in it, with the modules called within.
    SUM(duration) AS own,                                          -- double, s: Time in it alone; adds up over modules.
    AVG(total_duration) AS mean,                                   -- double, s: One call, with the modules called within.
    approx_percentile_cont(total_duration, 0.5) AS p50,            -- double, s: Half of the calls took no longer, with the modules called within.
    approx_percentile_cont(total_duration, 0.95) AS p95,           -- double, s: 95 % of the calls took no longer.
    approx_percentile_cont(total_duration, 0.99) AS p99,           -- double, s: 99 % of the calls took no longer.
    MAX(total_duration) AS longest,                                -- double, s: The longest call.
    100 * SUM(duration) / NULLIF(SUM(SUM(duration)) OVER (PARTITION BY run), 0) AS share -- double, %: own, of the own time of all modules and stages.
FROM python.torch_trace
GROUP BY run, module, module_type, stage
