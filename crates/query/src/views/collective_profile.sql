-- python.collective_profile: One row per kind and size class of collective over everything recorded, all ranks together: calls, how long one took, bandwidth, and how that compares with the time of the steps. Operations in captured steps are in all but the percentiles and the longest.
-- example: SELECT operation_type, size, calls, p50_ms, p95_ms, busbw_gbps, share FROM python.collective_profile ORDER BY total_ms DESC
WITH captured AS (
    SELECT DISTINCT run, host, pid, step, TRUE AS captured FROM python.steps WHERE captured
), each AS (
    SELECT operation.*, captured, CASE
        WHEN bytes < 4096 THEN 1 WHEN bytes < 65536 THEN 2 WHEN bytes < 1048576 THEN 3
        WHEN bytes < 16777216 THEN 4 WHEN bytes < 268435456 THEN 5 ELSE 6
    END AS class
    FROM python.nccl_trace AS operation LEFT JOIN captured USING (run, host, pid, step)
), training AS (
    SELECT run, SUM(duration) AS seconds FROM python.steps GROUP BY run
), summed AS (
    SELECT run, operation_type, backend, class,
        COUNT(*) AS calls, COUNT(duration_ms) AS timed, SUM(bytes) AS bytes, SUM(duration_ms) AS total_ms,
        AVG(duration_ms) AS mean_ms,
        approx_percentile_cont(duration_ms, 0.5) FILTER (WHERE captured IS NULL) AS p50_ms,
        approx_percentile_cont(duration_ms, 0.95) FILTER (WHERE captured IS NULL) AS p95_ms,
        MAX(duration_ms) FILTER (WHERE captured IS NULL) AS max_ms,
        SUM(algbw_gbps * duration_ms) / NULLIF(SUM(CASE WHEN algbw_gbps IS NOT NULL THEN duration_ms END), 0) AS algbw_gbps,
        SUM(busbw_gbps * duration_ms) / NULLIF(SUM(CASE WHEN busbw_gbps IS NOT NULL THEN duration_ms END), 0) AS busbw_gbps
    FROM each GROUP BY run, operation_type, backend, class
)
SELECT
    summed.run AS run,                          -- text: The run.
    operation_type,                             -- text: Name as in torch.distributed: all_reduce, broadcast, send.
    backend,                                    -- text: gloo, nccl, mpi.
    CASE class
        WHEN 1 THEN '< 4 KiB' WHEN 2 THEN '4 to 64 KiB' WHEN 3 THEN '64 KiB to 1 MiB'
        WHEN 4 THEN '1 to 16 MiB' WHEN 5 THEN '16 to 256 MiB' ELSE '>= 256 MiB'
    END AS size,                                -- text: Size class of one operation's bytes on one rank, its lower end included.
    calls,                                      -- bigint: Recorded operations.
    timed,                                      -- bigint: Operations whose completion was seen. Times and bandwidths cover only these.
    bytes,                                      -- bigint, B: Sum over all calls and ranks.
    total_ms,                                   -- double, ms: Sum of the times from issue to completion.
    mean_ms,                                    -- double, ms: One of them.
    p50_ms,                                     -- double, ms: Half of them took no longer.
    p95_ms,                                     -- double, ms: 95 % of them took no longer; of many an approximation.
    max_ms,                                     -- double, ms: The longest.
    algbw_gbps,                                 -- double, GB/s: Bytes over time, of all of them.
    busbw_gbps,                                 -- double, GB/s: The same times the bus factor, comparable with the links' speed.
    100 * total_ms / 1000 / NULLIF(training.seconds, 0) AS share -- double, %: total_ms as a share of the time of all steps of all ranks. It can be above 100, because collectives overlap with each other and with compute.
FROM summed LEFT JOIN training ON summed.run = training.run
