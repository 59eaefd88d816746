-- gpu.utilization: One row per device of each capture with kernels: how well they used it, as the TensorBoard plugin estimates it. It looks at all steps of python.step_categories from the first to the last; without operators, from the first kernel to the last.
-- example: SELECT rank, device, utilization, sm_efficiency, occupancy FROM gpu.utilization ORDER BY utilization
WITH kernel AS (
    SELECT run, capture, rank, device, CAST(ts AS BIGINT) AS begins, CAST(ts AS BIGINT) + CAST(ROUND(duration * 1e9) AS BIGINT) AS ends,
        blocks_per_sm, occupancy
    FROM gpu.kernels WHERE kind = 'kernel'
), spanned AS (
    SELECT *, MIN(begins) OVER (PARTITION BY run, capture) AS first, MAX(ends) OVER (PARTITION BY run, capture) AS last FROM kernel
), steps AS (
    SELECT run, capture, MIN(CAST(ts AS BIGINT)) AS first, MAX(CAST(ts AS BIGINT) + CAST(ROUND(total * 1e9) AS BIGINT)) AS last
    FROM python.step_categories GROUP BY run, capture
), clipped AS (
    SELECT spanned.run AS run, spanned.capture AS capture, rank, device, blocks_per_sm, occupancy,
        COALESCE(steps.last, spanned.last) - COALESCE(steps.first, spanned.first) AS whole,
        GREATEST(begins, COALESCE(steps.first, spanned.first)) AS begins, LEAST(ends, COALESCE(steps.last, spanned.last)) AS ends
    FROM spanned LEFT JOIN steps ON spanned.run = steps.run AND spanned.capture = steps.capture
), edge AS (
    -- What lies outside changes nothing, so that a device with nothing else has its row.
    SELECT run, capture, rank, device, whole, CASE WHEN side > 0 THEN begins ELSE ends END AS at,
        CASE WHEN begins < ends THEN side ELSE 0 END AS change, CASE WHEN begins < ends THEN side * blocks_per_sm END AS blocks,
        CASE WHEN begins < ends AND side > 0 THEN occupancy * (ends - begins) END AS occupied,
        CASE WHEN begins < ends AND side > 0 AND occupancy IS NOT NULL THEN ends - begins END AS occupied_time
    FROM clipped CROSS JOIN (VALUES (1), (-1)) AS sides (side)
), instant AS (
    SELECT run, capture, rank, device, whole, at, SUM(change) AS change, SUM(blocks) AS blocks, COUNT(blocks) AS known,
        SUM(occupied) AS occupied, SUM(occupied_time) AS occupied_time
    FROM edge GROUP BY run, capture, rank, device, whole, at
), stretch AS (
    SELECT run, capture, rank, device, whole, known, occupied, occupied_time, LEAD(at) OVER (PARTITION BY run, capture, device ORDER BY at) - at AS length,
        SUM(change) OVER (PARTITION BY run, capture, device ORDER BY at ROWS UNBOUNDED PRECEDING) AS running,
        SUM(COALESCE(blocks, 0)) OVER (PARTITION BY run, capture, device ORDER BY at ROWS UNBOUNDED PRECEDING) AS blocks
    FROM instant
)
SELECT
    run,                                          -- text: The run.
    capture,                                      -- text: Name of the capture.
    rank,                                         -- int: Global rank; NULL where the capture does not say.
    device,                                       -- int: Number of the device; NULL where the capture does not say.
    100.0 * SUM(CASE WHEN running > 0 THEN length ELSE 0 END) / NULLIF(MAX(whole), 0) AS utilization, -- double, %: Time in which a kernel ran, of all.
    CASE WHEN SUM(known) > 0 THEN 100.0 * SUM(CASE WHEN running > 0 THEN LEAST(blocks, 1) * length ELSE 0 END) / NULLIF(MAX(whole), 0) END AS sm_efficiency, -- double, %: Multiprocessors that had a block, over all time; each moment counts the blocks per multiprocessor of what runs, at most 1. NULL where the capture does not say them.
    SUM(occupied) / NULLIF(SUM(occupied_time), 0) AS occupancy, -- double, %: Mean of the estimated achieved occupancy of kernels, by their time.
    SUM(CASE WHEN running > 0 THEN length ELSE 0 END) / 1e9 AS busy, -- double, s: Time in which a kernel ran.
    MAX(whole) / 1e9 AS total                     -- double, s: All time that was looked at.
FROM stretch GROUP BY run, capture, rank, device
