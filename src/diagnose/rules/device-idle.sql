-- rule: device-idle
-- family: capture
-- kind: fact
-- confidence: likely
-- needs: gpu.kernels.duration >= 50
-- also: idle, gpu idle, utilization, underutilized, launch bound, cpu bound
-- says: {who}: in {share:%} of {capture} the GPU had nothing to do{because}
-- do: larger batches, or fewer and longer kernels: torch.compile(mode="reduce-overhead") launches CUDA graphs, fused optimizers one kernel. probe profile shows the operators, gpu.launch_stats their launches
-- record: probe capture, in a run that trains on a GPU
WITH t AS (
    SELECT g.run, g.capture, g.rank, c.pid, g.idle, g.total FROM gpu.timeline g JOIN $captures AS c ON g.run = c.run AND g.capture = c.capture
    WHERE c.kernels >= 50 AND g.total > 0
), profiled AS (
    -- A profiler slows the host down. Where steps took much longer with it, an idle device shows nothing.
    SELECT pid, median(duration) FILTER (WHERE captured) / median(duration) FILTER (WHERE captured IS NOT TRUE) AS longer
    FROM python.steps WHERE pid IN ($pids) GROUP BY pid
), i AS (
    -- Of the stream that has most to do.
    SELECT run, capture, host_wait, idle, ROW_NUMBER() OVER (PARTITION BY run, capture ORDER BY idle) AS place FROM gpu.idle_causes
), l AS (
    SELECT run, capture, 1.0 * SUM(short_kernels) / SUM(launches) AS short FROM gpu.launch_stats GROUP BY run, capture
)
SELECT t.rank, 'device' AS seen, CASE WHEN t.idle >= 0.4 * t.total THEN 'warn' ELSE 'note' END AS severity, t.capture, t.idle / t.total AS share,
    CASE WHEN i.host_wait >= 0.5 * i.idle THEN ': mostly because the host launched its work too late'
        || CASE WHEN l.short >= 0.5 THEN ' (' || CAST(CAST(round(100 * l.short) AS INT) AS VARCHAR) || ' % of the kernels take less time than their launch)' ELSE '' END
        ELSE '' END AS because
FROM t LEFT JOIN i ON t.run = i.run AND t.capture = i.capture AND i.place = 1 LEFT JOIN l ON t.run = l.run AND t.capture = l.capture
    LEFT JOIN profiled p ON t.pid = p.pid
WHERE t.idle >= 0.2 * t.total AND COALESCE(p.longer, 1.0) <= 1.2
