-- rule: host-bound
-- family: device
-- kind: fact
-- confidence: measured
-- needs: gpu.metrics.utilization >= 3
-- also: launch-bound, cpu-bound, gpu idle, underutilization, launches
-- says: {who}: no kernel ran in {idle:%} of the time, and only {elsewhere:%} of a step is outside of forward, backward and optimizer: the host launches operations more slowly than the GPU runs them{most}
-- do: fewer and larger operations: torch.compile, or CUDA graphs (mode="reduce-overhead"), larger batches, fused=True for the optimizer; probe capture shows what is launched
-- record: the driver of a GPU reports it once a second
WITH s AS (
    SELECT host, pid, rank, median(duration) AS duration, MIN(ts) AS begins, MAX(ts) AS ends,
        SUM(data_time + comm_time + other_time + COALESCE(checkpoint_time, 0) + COALESCE(validation_time, 0)) / SUM(duration) AS elsewhere,
        -- An upper bound of the share in which the process's own stream has nothing to do.
        median(gpu_idle_max / duration) AS bound
    FROM python.steps WHERE $window AND kind IS DISTINCT FROM 'call' GROUP BY host, pid, rank HAVING COUNT(*) >= 40 AND COUNT(gpu_idle_max) >= 8
), waits AS (
    -- Time in which the host waits for the GPU itself, in the parts where it would launch operations.
    SELECT pid, median(waited) AS waited FROM (
        SELECT pid, step, SUM(waited) AS waited FROM python.sync_points
        WHERE $window AND device LIKE 'cuda%' AND part IN ('forward', 'backward', 'optimizer') GROUP BY pid, step
    ) AS w GROUP BY pid
), alone AS (
    SELECT host FROM s GROUP BY host HAVING COUNT(*) = 1
), single AS (
    SELECT host FROM gpu.metrics WHERE host IN (SELECT host FROM alone) GROUP BY host HAVING COUNT(DISTINCT gpu) = 1
), u AS (
    -- In containers the driver does not say whose a GPU is: then it has to be the only one, of the only process.
    SELECT s.pid, 1 - AVG(g.utilization) / 100 AS idle FROM s JOIN gpu.metrics g ON s.host = g.host
    WHERE g.utilization IS NOT NULL AND g.ts BETWEEN s.begins AND s.ends
        AND (g.ranks = CAST(s.rank AS VARCHAR) OR g.ranks IS NULL AND s.host IN (SELECT host FROM single))
    GROUP BY s.pid HAVING COUNT(*) >= 3
), own AS (
    -- Modules that repeat are one: layers.3.attn is layers.*.attn.
    SELECT pid, regexp_replace(module, '(^|\.)[0-9]+(\.|$)', '\1*\2', 'g') AS module, SUM(host_duration) AS took FROM python.torch_trace
    WHERE $window AND stage IN ('forward', 'backward') AND module IS NOT NULL GROUP BY pid, regexp_replace(module, '(^|\.)[0-9]+(\.|$)', '\1*\2', 'g')
), largest AS (
    SELECT pid, module, took / SUM(took) OVER (PARTITION BY pid) AS share, ROW_NUMBER() OVER (PARTITION BY pid ORDER BY took DESC, module) AS position FROM own
)
SELECT s.rank, 'idle' AS seen, CASE WHEN u.idle - s.elsewhere >= 0.5 THEN 'warn' ELSE 'note' END AS severity, u.idle, s.elsewhere,
    COALESCE('; ' || CAST(CAST(round(100 * largest.share) AS BIGINT) AS VARCHAR) || ' % of the host''s time in modules is in ' || largest.module, '') AS most
FROM s JOIN u ON s.pid = u.pid LEFT JOIN waits ON s.pid = waits.pid
    LEFT JOIN largest ON s.pid = largest.pid AND largest.position = 1 AND largest.share >= 0.4
WHERE u.idle - s.elsewhere >= 0.15 AND s.bound >= 0.15 AND COALESCE(waits.waited, 0.0) < 0.25 * s.duration
