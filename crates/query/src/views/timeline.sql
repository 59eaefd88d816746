-- gpu.timeline: One row per capture with device activities: what its devices did from the first to the last of them, by TraceLens' definition. The parts add up to total.
-- example: SELECT rank, computation, exposed_comm, exposed_memcpy, idle, total, 100 * idle / total AS idle_percent FROM gpu.timeline ORDER BY rank
WITH traced AS (
    SELECT run, capture, COUNT(*) FILTER (WHERE kind = 'operator') AS operators FROM python.operators GROUP BY run, capture
), known AS (
    SELECT run, capture, SUM(launches) AS launches FROM python.captures GROUP BY run, capture
), activity AS (
    SELECT kernels.run AS run, kernels.capture AS capture, rank,
        CASE WHEN category = 'communication' THEN 2 WHEN kind = 'memcpy' THEN 3 ELSE 1 END AS class,
        CAST(ts AS BIGINT) AS begins, CAST(ts AS BIGINT) + CAST(ROUND(duration * 1e9) AS BIGINT) AS ends
    FROM gpu.kernels kernels LEFT JOIN traced ON kernels.run = traced.run AND kernels.capture = traced.capture
        LEFT JOIN known ON kernels.run = known.run AND kernels.capture = known.capture
    -- Where the capture has operators, only what one of them launched; all of it where nothing is launched one by one, as on TPUs.
    WHERE kind <> 'sync' AND (launches = 0 OR launch_ts IS NOT NULL AND (operator IS NOT NULL OR COALESCE(operators, 0) = 0))
), edge AS (
    SELECT run, capture, rank, begins AS at, class, 1 AS change FROM activity
    UNION ALL SELECT run, capture, rank, ends, class, -1 FROM activity
), instant AS (
    SELECT run, capture, rank, at, SUM(CASE WHEN class = 1 THEN change ELSE 0 END) AS computing,
        SUM(CASE WHEN class = 2 THEN change ELSE 0 END) AS communicating, SUM(CASE WHEN class = 3 THEN change ELSE 0 END) AS copying
    FROM edge GROUP BY run, capture, rank, at
), stretch AS (
    SELECT run, capture, rank, LEAD(at) OVER (PARTITION BY run, capture ORDER BY at) - at AS length,
        SUM(computing) OVER (PARTITION BY run, capture ORDER BY at ROWS UNBOUNDED PRECEDING) > 0 AS computing,
        SUM(communicating) OVER (PARTITION BY run, capture ORDER BY at ROWS UNBOUNDED PRECEDING) > 0 AS communicating,
        SUM(copying) OVER (PARTITION BY run, capture ORDER BY at ROWS UNBOUNDED PRECEDING) > 0 AS copying
    FROM instant
)
SELECT
    run,                                          -- text: The run.
    capture,                                      -- text: Name of the capture.
    rank,                                         -- int: Global rank; NULL where the capture does not say.
    SUM(CASE WHEN computing THEN length ELSE 0 END) / 1e9 AS computation, -- double, s: Time in which a kernel that is no collective, or a memset, ran. Only activities whose launch is in the capture count, and where it has operators, only those that an operator launched; all of them in a capture without launches (TPUs).
    SUM(CASE WHEN communicating AND NOT computing THEN length ELSE 0 END) / 1e9 AS exposed_comm, -- double, s: Time in which a collective ran, and no computation.
    SUM(CASE WHEN copying AND NOT computing AND NOT communicating THEN length ELSE 0 END) / 1e9 AS exposed_memcpy, -- double, s: Time in which something was copied, and nothing else ran.
    SUM(CASE WHEN computing OR communicating OR copying THEN length ELSE 0 END) / 1e9 AS busy, -- double, s: The three together.
    SUM(CASE WHEN computing OR communicating OR copying THEN 0 ELSE length END) / 1e9 AS idle, -- double, s: Time in which nothing ran.
    SUM(length) / 1e9 AS total,                   -- double, s: From the beginning of the first activity to the end of the last.
    SUM(CASE WHEN communicating THEN length ELSE 0 END) / 1e9 AS comm -- double, s: Time in which a collective ran, also beside computation.
FROM stretch GROUP BY run, capture, rank
