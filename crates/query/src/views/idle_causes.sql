-- gpu.idle_causes: One row per stream of each capture: why it was idle between its activities, by the definition of HolisticTraceAnalysis. Like there, the last step is left out where there are two or more.
-- example: SELECT rank, device, stream, host_wait, kernel_wait, other FROM gpu.idle_causes ORDER BY host_wait DESC
WITH known AS (
    SELECT run, capture, MAX(last_step) AS last_step, MAX(steps) AS steps FROM python.captures GROUP BY run, capture
), activity AS (
    SELECT kernels.run AS run, kernels.capture AS capture, kernels.rank AS rank, device, stream, CAST(kernels.ts AS BIGINT) AS begins,
        CAST(kernels.ts AS BIGINT) + CAST(ROUND(kernels.duration * 1e9) AS BIGINT) AS ends, CAST(launch_ts AS BIGINT) AS launched
    FROM gpu.kernels kernels JOIN known ON kernels.run = known.run AND kernels.capture = known.capture
    WHERE kind <> 'sync' AND (steps < 2 OR step < last_step)
), gap AS (
    SELECT run, capture, rank, device, stream, begins, launched,
        LAG(ends) OVER (PARTITION BY run, capture, device, stream ORDER BY begins, ends) AS before
    FROM activity
), cause AS (
    SELECT run, capture, rank, device, stream, GREATEST(begins - before, 0) AS length,
        CASE WHEN launched > before THEN 1 WHEN begins - before < 30000 THEN 2 ELSE 3 END AS cause
    FROM gap WHERE before IS NOT NULL
)
SELECT
    run,                                          -- text: The run.
    capture,                                      -- text: Name of the capture.
    rank,                                         -- int: Global rank; NULL where the capture does not say.
    device,                                       -- int: Number of the device.
    stream,                                       -- bigint: Its stream.
    SUM(CASE WHEN cause = 1 THEN length ELSE 0 END) / 1e9 AS host_wait, -- double, s: Before activities that were launched after the one before had ended: the host was late.
    SUM(CASE WHEN cause = 2 THEN length ELSE 0 END) / 1e9 AS kernel_wait, -- double, s: Other gaps of less than 30 microseconds: what a start on the device takes.
    SUM(CASE WHEN cause = 3 THEN length ELSE 0 END) / 1e9 AS other, -- double, s: Other gaps: waits for other streams, or activities whose launch is not in the capture.
    SUM(length) / 1e9 AS idle                     -- double, s: The three together.
FROM cause GROUP BY run, capture, rank, device, stream
