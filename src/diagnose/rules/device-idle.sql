-- rule: device-idle
-- family: capture
-- kind: fact
-- confidence: likely
-- needs: gpu.kernels.duration >= 50
-- also: idle, gpu idle, utilization, underutilized, launch bound, cpu bound
-- says: {who}: in {share:%} of the time that was captured the GPU had nothing to do{because}
-- do: larger batches, or fewer and longer kernels: torch.compile(mode="reduce-overhead") launches CUDA graphs, fused optimizers one kernel. probe profile shows the operators, gpu.launch_stats their launches
-- record: probe capture, in a run that trains on a GPU
WITH t AS (
    SELECT g.run, g.capture, g.rank, g.idle, g.total FROM gpu.timeline g JOIN $captures AS c ON g.run = c.run AND g.capture = c.capture WHERE c.kernels >= 50 AND g.total > 0
), profiled AS (
    -- A profiler slows the host down. Where steps took much longer with it, an idle device shows nothing.
    SELECT c.run, c.capture, median(s.duration) FILTER (WHERE s.captured AND s.step BETWEEN c.first_step AND c.last_step)
        / median(s.duration) FILTER (WHERE s.captured IS NOT TRUE) AS longer
    FROM $captures AS c JOIN python.steps s ON c.host = s.host AND c.pid = s.pid GROUP BY c.run, c.capture
), k AS (
    -- The timeline leaves out what no operator launched, such as the kernels of a CUDA graph.
    SELECT run, capture, CASE WHEN COUNT(operator) > 0 THEN SUM(CASE WHEN operator IS NULL OR launch_ts IS NULL THEN duration ELSE 0 END) / SUM(duration) END AS unseen,
        AVG(CASE WHEN launch_kernels = 1 AND launch_duration > duration THEN 1.0 WHEN launch_kernels = 1 THEN 0.0 END) AS short
    FROM gpu.kernels WHERE kind <> 'sync' GROUP BY run, capture HAVING SUM(duration) > 0
), i AS (
    -- Of the stream with most kernels.
    SELECT w.run, w.capture, w.host_wait, w.idle, ROW_NUMBER() OVER (PARTITION BY w.run, w.capture ORDER BY n.kernels DESC) AS place
    FROM gpu.idle_causes w JOIN (SELECT run, capture, stream, COUNT(*) AS kernels FROM gpu.kernels WHERE kind = 'kernel' GROUP BY run, capture, stream) AS n
        ON w.run = n.run AND w.capture = n.capture AND w.stream = n.stream
), idle AS (
    SELECT t.rank, t.idle, t.total, p.longer, k.unseen, COALESCE(i.idle > 0 AND i.host_wait >= 0.5 * i.idle, false) AS is_late, k.short
    FROM t LEFT JOIN i ON t.run = i.run AND t.capture = i.capture AND i.place = 1
        LEFT JOIN profiled p ON t.run = p.run AND t.capture = p.capture LEFT JOIN k ON t.run = k.run AND t.capture = k.capture
    WHERE t.idle >= 0.2 * t.total
)
SELECT rank, 'device' AS seen, CASE WHEN idle >= 0.4 * total THEN 'warn' ELSE 'note' END AS severity, idle / total AS share,
    CASE WHEN bool_and(is_late) OVER () THEN ': mostly because the host launched its work too late'
        || CASE WHEN AVG(short) OVER () >= 0.5 THEN ' (' || CAST(CAST(round(100 * AVG(short) OVER ()) AS INT) AS VARCHAR) || ' % of the kernels take less time than their launch)' ELSE '' END
        ELSE '' END AS because,
    CASE WHEN longer > 1.2 THEN 'captured steps took ' || CAST(round(100 * (longer - 1)) AS VARCHAR) || ' % longer than others, so that the profiler may be the reason'
        WHEN unseen > 0.1 THEN CAST(round(100 * unseen) AS VARCHAR) || ' % of the time of the device was launched by no operator, and does not count as busy' END AS undecided
FROM idle
