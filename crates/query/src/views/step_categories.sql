-- python.step_categories: One row per step of each capture: what its time went to, by the definition of the TensorBoard plugin. Each instant counts for the first of the categories that is active then. A step begins when the one before has ended on the device too; without steps the capture is one, numbered 0; steps at the end that lack device activities are left out.
-- example: SELECT step, rank, kernel, memcpy, communication, runtime, dataloader, cpu, other, total FROM python.step_categories ORDER BY rank, step
-- example: SELECT rank, 100 * SUM(dataloader) / SUM(total) AS dataloader_percent FROM python.step_categories GROUP BY rank
WITH numbered AS (
    SELECT run, capture, rank, step, MIN(CAST(ts AS BIGINT)) AS begins, MAX(CAST(ts AS BIGINT) + CAST(ROUND(duration * 1e9) AS BIGINT)) AS ends
    FROM (SELECT *, COUNT(*) FILTER (WHERE name LIKE 'ProfilerStep#%') OVER (PARTITION BY run, capture) AS profiled FROM python.operators WHERE kind = 'annotation')
    WHERE step IS NOT NULL AND profiled = 0 GROUP BY run, capture, rank, step
), event AS (
    -- Steps and what devices did: all that says when a step begins and ends.
    SELECT run, capture, rank, CAST(substr(name, 14) AS BIGINT) AS step, 8 AS class, CAST(ts AS BIGINT) AS begins,
        CAST(ts AS BIGINT) + CAST(ROUND(duration * 1e9) AS BIGINT) AS ends, false AS on_device, CAST(NULL AS BIGINT) AS launched
    FROM python.operators WHERE kind = 'annotation' AND regexp_like(name, '^ProfilerStep#[0-9]{1,18}$')
    UNION ALL
    -- Steps of other profilers: the longest range of each, and no more than until the next begins.
    SELECT run, capture, rank, step, 8, begins, LEAST(ends, COALESCE(LEAD(begins) OVER (PARTITION BY run, capture ORDER BY begins), ends)), false, NULL
    FROM numbered
    UNION ALL
    SELECT run, capture, rank, -1, 8, MIN(CAST(ts AS BIGINT)), MAX(CAST(ts AS BIGINT) + CAST(ROUND(duration * 1e9) AS BIGINT)), false, NULL
    FROM python.operators GROUP BY run, capture, rank
    HAVING COUNT(*) FILTER (WHERE name LIKE 'ProfilerStep#%' OR kind = 'annotation' AND step IS NOT NULL) = 0
    UNION ALL
    SELECT run, capture, rank, COALESCE(step, -1), CASE
            WHEN kind = 'memcpy' THEN 2 WHEN kind = 'memset' THEN 3 WHEN category = 'communication' THEN 4 ELSE 1
        END, CAST(ts AS BIGINT), CAST(ts AS BIGINT) + CAST(ROUND(duration * 1e9) AS BIGINT), true,
        CAST(launch_ts AS BIGINT) + CAST(ROUND(launch_duration * 1e9) AS BIGINT)
    FROM gpu.kernels WHERE kind <> 'sync'
), in_step AS (
    SELECT *, MAX(CASE WHEN class = 8 THEN ends END) OVER (PARTITION BY run, capture, step) AS step_ends FROM event
), matching AS (
    SELECT *, on_device AND COALESCE(launched <= step_ends, false) AS matched FROM in_step
), with_device AS (
    SELECT *, MIN(CASE WHEN matched THEN begins END) OVER (PARTITION BY run, capture, step) AS device_begins,
        MAX(CASE WHEN matched THEN ends END) OVER (PARTITION BY run, capture, step) AS device_ends,
        SUM(CASE WHEN matched THEN 1 ELSE 0 END) OVER (PARTITION BY run, capture, step) AS activities
    FROM matching
), with_first AS (
    SELECT *, SUM(CASE WHEN matched THEN 1 ELSE 0 END) OVER (PARTITION BY run, capture) AS all_activities,
        MIN(CASE WHEN class = 8 THEN begins END) OVER (PARTITION BY run, capture) AS first_begins
    FROM with_device
), with_first_device AS (
    SELECT *, MIN(CASE WHEN class = 8 AND begins = first_begins THEN device_begins END) OVER (PARTITION BY run, capture) AS first_device_begins
    FROM with_first
), with_origin AS (
    -- What ran on the device before anything of the first step did.
    SELECT *, GREATEST(first_begins, COALESCE(MAX(CASE WHEN on_device AND NOT matched AND ends < first_device_begins THEN ends END)
        OVER (PARTITION BY run, capture), first_begins)) AS origin, class = 8 AS is_step
    FROM with_first_device
), stretched AS (
    SELECT *, GREATEST(origin, MAX(GREATEST(ends, COALESCE(device_ends, ends)))
            OVER (PARTITION BY run, capture, is_step ORDER BY begins ROWS UNBOUNDED PRECEDING)) AS stretched_ends,
        COALESCE(LAG(activities) OVER (PARTITION BY run, capture, is_step ORDER BY begins), 0) AS activities_before,
        ROW_NUMBER() OVER (PARTITION BY run, capture, is_step ORDER BY begins) AS position
    FROM with_origin
), chained AS (
    SELECT *, COALESCE(LAG(stretched_ends) OVER (PARTITION BY run, capture, is_step ORDER BY position), origin) AS ended_before FROM stretched
), bounded AS (
    SELECT *, MAX(CASE WHEN is_step AND activities > 0 THEN position END) OVER (PARTITION BY run, capture) AS last_active,
        MAX(CASE WHEN is_step THEN position END) OVER (PARTITION BY run, capture) AS steps
    FROM chained
), kept AS (
    SELECT run, capture, rank, class, COALESCE(step, 0) AS step,
        CASE WHEN class = 8 AND all_activities > 0 THEN GREATEST(begins, ended_before) ELSE begins END AS begins,
        CASE WHEN class = 8 AND all_activities > 0 THEN stretched_ends ELSE ends END AS ends
    FROM bounded
    WHERE class < 8 OR all_activities = 0 OR steps = 1 OR position < last_active
        OR position = last_active AND (position = 1 OR activities_before * 0.8 <= activities)
    UNION ALL
    SELECT run, capture, rank, CASE WHEN regexp_like(name, '^(nccl|gloo):') THEN 4
            WHEN regexp_like(name, '^enumerate\(DataLoader\)#.*\.__next__$') OR name LIKE 'enumerate(DataPipe)#%' THEN 6 ELSE 7
        END, 0, CAST(ts AS BIGINT), CAST(ts AS BIGINT) + CAST(ROUND(duration * 1e9) AS BIGINT)
    FROM python.operators
    -- What an operator encloses adds nothing to it, but for categories that come before its own.
    WHERE name NOT LIKE 'ProfilerStep#%' AND (parent IS NULL OR parent LIKE 'ProfilerStep#%' OR regexp_like(name, '^(nccl|gloo):|^enumerate\(Data'))
    UNION ALL
    SELECT run, capture, rank, 5, 0, CAST(ts AS BIGINT), CAST(ts AS BIGINT) + CAST(ROUND(duration * 1e9) AS BIGINT) FROM gpu.launches
), edge AS (
    SELECT run, capture, rank, class, step, CASE WHEN change > 0 THEN begins ELSE ends END AS at, change
    FROM kept CROSS JOIN (VALUES (1), (-1)) AS side (change)
), instant AS (
    SELECT run, capture, rank, at, SUM(CASE WHEN class = 1 THEN change ELSE 0 END) AS c1,
        SUM(CASE WHEN class = 2 THEN change ELSE 0 END) AS c2, SUM(CASE WHEN class = 3 THEN change ELSE 0 END) AS c3,
        SUM(CASE WHEN class = 4 THEN change ELSE 0 END) AS c4, SUM(CASE WHEN class = 5 THEN change ELSE 0 END) AS c5,
        SUM(CASE WHEN class = 6 THEN change ELSE 0 END) AS c6, SUM(CASE WHEN class = 7 THEN change ELSE 0 END) AS c7,
        SUM(CASE WHEN class = 8 THEN change ELSE 0 END) AS c8, SUM(CASE WHEN class = 8 THEN step * change ELSE 0 END) AS step
    FROM edge GROUP BY run, capture, rank, at
), running AS (
    SELECT run, capture, rank, at, LEAD(at) OVER (PARTITION BY run, capture ORDER BY at) - at AS length, SUM(c1) OVER sofar AS c1,
        SUM(c2) OVER sofar AS c2, SUM(c3) OVER sofar AS c3, SUM(c4) OVER sofar AS c4, SUM(c5) OVER sofar AS c5,
        SUM(c6) OVER sofar AS c6, SUM(c7) OVER sofar AS c7, SUM(c8) OVER sofar AS c8, SUM(step) OVER sofar AS step
    FROM instant WINDOW sofar AS (PARTITION BY run, capture ORDER BY at ROWS UNBOUNDED PRECEDING)
), stretch AS (
    SELECT run, capture, rank, at, GREATEST(step, 0) AS step, length, CASE WHEN c1 > 0 THEN 1 WHEN c2 > 0 THEN 2 WHEN c3 > 0 THEN 3
        WHEN c4 > 0 THEN 4 WHEN c5 > 0 THEN 5 WHEN c6 > 0 THEN 6 WHEN c7 > 0 THEN 7 ELSE 8 END AS class
    FROM running WHERE c8 > 0 AND length IS NOT NULL
)
SELECT
    run,                                          -- text: The run.
    capture,                                      -- text: Name of the capture.
    rank,                                         -- int: Global rank; NULL where the capture does not say.
    step,                                         -- bigint: Number of the ProfilerStep, or of another profiler's step.
    arrow_cast(MIN(at), 'Timestamp(Nanosecond, Some("UTC"))') AS ts, -- timestamp: When it began.
    SUM(CASE WHEN class = 1 THEN length ELSE 0 END) / 1e9 AS kernel, -- double, s: A kernel ran that is no collective.
    SUM(CASE WHEN class = 2 THEN length ELSE 0 END) / 1e9 AS memcpy, -- double, s: Something was copied.
    SUM(CASE WHEN class = 3 THEN length ELSE 0 END) / 1e9 AS memset, -- double, s: Memory was set.
    SUM(CASE WHEN class = 4 THEN length ELSE 0 END) / 1e9 AS communication, -- double, s: A collective ran on a device, or one of NCCL's or Gloo's operators on the host.
    SUM(CASE WHEN class = 5 THEN length ELSE 0 END) / 1e9 AS runtime, -- double, s: In a call of the device's runtime or driver.
    SUM(CASE WHEN class = 6 THEN length ELSE 0 END) / 1e9 AS dataloader, -- double, s: In the DataLoader.
    SUM(CASE WHEN class = 7 THEN length ELSE 0 END) / 1e9 AS cpu, -- double, s: In another operator or range of the host.
    SUM(CASE WHEN class = 8 THEN length ELSE 0 END) / 1e9 AS other, -- double, s: In none of these.
    SUM(length) / 1e9 AS total                    -- double, s: The whole step.
FROM stretch GROUP BY run, capture, rank, step
