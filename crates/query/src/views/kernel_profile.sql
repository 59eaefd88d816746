-- gpu.kernel_profile: One row per kernel of each capture: calls, time, and occupancy as the profiler estimates it, weighted by time as the TensorBoard plugin does.
-- example: SELECT name, calls, total, share, occupancy FROM gpu.kernel_profile ORDER BY total DESC LIMIT 10
-- example: SELECT category, SUM(calls) AS calls, SUM(total) AS seconds FROM gpu.kernel_profile GROUP BY category ORDER BY seconds DESC
SELECT
    run,                                          -- text: The run.
    capture,                                      -- text: Name of the capture.
    rank,                                         -- int: Global rank; NULL where the capture does not say.
    category,                                     -- text: computation or communication.
    name,                                         -- text: Name of the kernel.
    COUNT(*) AS calls,                            -- bigint: How often it ran.
    SUM(duration) AS total,                       -- double, s: Time of all of them.
    AVG(duration) AS mean,                        -- double, s: Time of one.
    MIN(duration) AS shortest,                    -- double, s: The shortest.
    MAX(duration) AS longest,                     -- double, s: The longest.
    SUM(blocks_per_sm * duration) / NULLIF(SUM(CASE WHEN blocks_per_sm IS NOT NULL THEN duration END), 0) AS blocks_per_sm, -- double: Blocks over multiprocessors, weighted by time; NULL where the capture has none (ROCm).
    SUM(occupancy * duration) / NULLIF(SUM(CASE WHEN occupancy IS NOT NULL THEN duration END), 0) AS occupancy, -- double, %: Estimated achieved occupancy, weighted by time; NULL where the capture has none.
    100 * SUM(duration) / NULLIF(SUM(SUM(duration)) OVER (PARTITION BY run, capture), 0) AS share -- double, %: total, of the time of all kernels of the capture.
FROM gpu.kernels WHERE kind = 'kernel'
GROUP BY run, capture, rank, category, name
