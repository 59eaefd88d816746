-- gpu.queue_length: One row per launch and per start on a device: how many activities of the stream were launched and had not begun. Only activities whose launch is in the capture count, as in HolisticTraceAnalysis.
-- example: SELECT rank, device, stream, MAX(length) AS most, AVG(length) AS mean FROM gpu.queue_length GROUP BY rank, device, stream ORDER BY most DESC
WITH launched AS (
    -- The clocks of host and device may differ: what began before its launch was never in the queue.
    SELECT run, capture, rank, device, stream, launch_ts, GREATEST(ts, launch_ts) AS ts
    FROM gpu.kernels WHERE launch_ts IS NOT NULL AND kind <> 'sync'
), edge AS (
    SELECT run, capture, rank, device, stream, launch_ts AS ts, 1 AS change FROM launched
    UNION ALL SELECT run, capture, rank, device, stream, ts, -1 FROM launched
)
SELECT
    run,                                          -- text: The run.
    capture,                                      -- text: Name of the capture.
    rank,                                         -- int: Global rank; NULL where the capture does not say.
    device,                                       -- int: Number of the device.
    stream,                                       -- bigint: Its stream.
    ts,                                           -- timestamp: When it changed.
    change,                                       -- bigint: 1 for a launch, -1 for a start.
    SUM(change) OVER (PARTITION BY run, capture, device, stream ORDER BY ts, change DESC ROWS UNBOUNDED PRECEDING) AS length -- bigint: Activities that were launched and had not begun, from then on.
FROM edge
