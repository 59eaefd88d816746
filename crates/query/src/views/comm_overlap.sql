-- gpu.comm_overlap: One row per capture with collectives on a device: for how long computation ran beside them, by the definition of HolisticTraceAnalysis. Like there, the last step is left out where there are two or more, for it may be cut.
-- example: SELECT rank, communication, overlapped, percent FROM gpu.comm_overlap ORDER BY percent
WITH known AS (
    SELECT run, capture, MAX(last_step) AS last_step, MAX(steps) AS steps FROM python.captures GROUP BY run, capture
), activity AS (
    SELECT kernels.run AS run, kernels.capture AS capture, kernels.rank AS rank, category = 'communication' AS collective,
        CAST(kernels.ts AS BIGINT) AS begins, CAST(kernels.ts AS BIGINT) + CAST(ROUND(kernels.duration * 1e9) AS BIGINT) AS ends
    FROM gpu.kernels kernels JOIN known ON kernels.run = known.run AND kernels.capture = known.capture
    WHERE category IN ('communication', 'computation') AND (steps < 2 OR step < last_step)
), edge AS (
    SELECT run, capture, rank, collective, begins AS at, 1 AS change FROM activity
    UNION ALL SELECT run, capture, rank, collective, ends, -1 FROM activity
), instant AS (
    SELECT run, capture, rank, at, SUM(CASE WHEN collective THEN change ELSE 0 END) AS communicating,
        SUM(CASE WHEN collective THEN 0 ELSE change END) AS computing
    FROM edge GROUP BY run, capture, rank, at
), stretch AS (
    SELECT run, capture, rank, LEAD(at) OVER (PARTITION BY run, capture ORDER BY at) - at AS length,
        SUM(communicating) OVER (PARTITION BY run, capture ORDER BY at ROWS UNBOUNDED PRECEDING) > 0 AS communicating,
        SUM(computing) OVER (PARTITION BY run, capture ORDER BY at ROWS UNBOUNDED PRECEDING) > 0 AS computing
    FROM instant
)
SELECT
    run,                                          -- text: The run.
    capture,                                      -- text: Name of the capture.
    rank,                                         -- int: Global rank; NULL where the capture does not say.
    SUM(CASE WHEN communicating THEN length ELSE 0 END) / 1e9 AS communication, -- double, s: Time in which a collective ran on a device.
    SUM(CASE WHEN communicating AND computing THEN length ELSE 0 END) / 1e9 AS overlapped, -- double, s: Time of it in which a kernel that is none ran too.
    100.0 * SUM(CASE WHEN communicating AND computing THEN length ELSE 0 END) / SUM(CASE WHEN communicating THEN length ELSE 0 END) AS percent -- double, %: overlapped, of communication.
FROM stretch GROUP BY run, capture, rank HAVING SUM(CASE WHEN communicating THEN length ELSE 0 END) > 0
