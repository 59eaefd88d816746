-- python.memory_timeline: One row per allocation, free, segment operation and out-of-memory error of each capture: what was allocated and reserved on its device after it, and the peak so far.
-- example: SELECT ts, allocated, reserved, peak FROM python.memory_timeline WHERE device = 'cuda:0' ORDER BY number
-- example: SELECT capture, rank, device, step, MAX(allocated) AS peak, MAX(change) - MIN(change) AS swing FROM python.memory_timeline GROUP BY capture, rank, device, step ORDER BY rank, device, step
SELECT
    run,                                          -- text: The run.
    capture,                                      -- text: Name of the capture.
    rank,                                         -- int: Global rank; NULL where the capture does not say.
    device,                                       -- text: cpu, cuda:0, ….
    ts,                                           -- timestamp: When it was; NULL in snapshots that are older than such times.
    number,                                       -- bigint: Order among the memory events of the capture and device.
    step,                                         -- bigint: Step that it was in; NULL outside all of them.
    action,                                       -- text: As in python.memory_events.
    size,                                         -- bigint, B: Bytes of it, never negative.
    allocated,                                    -- bigint, B: Allocated on the device after it; NULL where the capture does not say.
    reserved,                                     -- bigint, B: Held by the allocator on the device after it; NULL where the capture does not say.
    SUM(CASE action WHEN 'alloc' THEN size WHEN 'free' THEN -size WHEN 'free_requested' THEN -size ELSE 0 END) OVER (PARTITION BY run, capture, device ORDER BY number ROWS UNBOUNDED PRECEDING) AS change, -- bigint, B: Allocated minus freed on the device since the capture began: known of every trace.
    MAX(allocated) OVER (PARTITION BY run, capture, device ORDER BY number ROWS UNBOUNDED PRECEDING) AS peak -- bigint, B: The most that was allocated up to here.
FROM python.memory_events WHERE action NOT IN ('snapshot', 'annotate')
