-- rule: host-bound
-- family: device
-- kind: fact
-- confidence: measured
-- needs: gpu.metrics.utilization >= 3
-- also: launch-bound, cpu-bound, gpu idle, underutilization, launches
-- says: {who}: no kernel ran in {idle:%} of the time, and only {elsewhere:%} of a step is outside of forward, backward and optimizer: the host launches operations more slowly than the GPU runs them
-- do: fewer and larger operations: torch.compile, or CUDA graphs (mode="reduce-overhead"), larger batches, fused=True for the optimizer; probe capture shows what is launched
-- record: the driver of a GPU says it once a second
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
)
SELECT s.rank, 'idle' AS seen, CASE WHEN u.idle - s.elsewhere >= 0.5 THEN 'warn' ELSE 'note' END AS severity, u.idle, s.elsewhere
FROM s JOIN u ON s.pid = u.pid LEFT JOIN waits ON s.pid = waits.pid
WHERE u.idle - s.elsewhere >= 0.15 AND s.bound >= 0.15 AND COALESCE(waits.waited, 0.0) < 0.25 * s.duration
