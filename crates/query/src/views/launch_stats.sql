-- gpu.launch_stats: One row per operator of each capture that launched kernels: what launching took against what the kernels took. Delays are by the definition of HolisticTraceAnalysis: from the end of the launch to the start, at least 0.
-- example: SELECT operator, launches, short_kernels, launch_time, kernel_time, mean_delay FROM gpu.launch_stats ORDER BY short_kernels DESC LIMIT 10
SELECT
    run,                                          -- text: The run.
    capture,                                      -- text: Name of the capture.
    rank,                                         -- int: Global rank; NULL where the capture does not say.
    operator,                                     -- text: Innermost operator around the launches; NULL for those in none.
    COUNT(*) AS launches,                         -- bigint: Kernels, copies and sets that were launched one at a time. Those of CUDA graphs do not count, for many share a launch.
    SUM(CASE WHEN duration < launch_duration THEN 1 ELSE 0 END) AS short_kernels, -- bigint: Those that took less on the device than their launch on the host.
    SUM(launch_duration) AS launch_time,          -- double, s: Time of the launches on the host.
    SUM(duration) AS kernel_time,                 -- double, s: Time on the device.
    AVG(launch_delay) AS mean_delay,              -- double, s: From the end of a launch to the start on the device.
    MAX(launch_delay) AS longest_delay            -- double, s: The longest of them.
FROM gpu.kernels WHERE launch_ts IS NOT NULL AND kind <> 'sync' AND launch_kernels = 1
GROUP BY run, capture, rank, operator
