-- python.memory_peak: Who held what when the most was allocated: per capture and device one row per module, operator and line whose allocations were there then, and one for what is older than the capture. They add up to peak.
-- example: SELECT origin, module, operator, file, line, bytes, blocks, share FROM python.memory_peak ORDER BY capture, device, bytes DESC LIMIT 20
-- example: SELECT capture, rank, device, module, SUM(bytes) AS bytes, SUM(share) AS share FROM python.memory_peak GROUP BY capture, rank, device, module ORDER BY bytes DESC LIMIT 10
WITH event AS (
    SELECT run, capture, rank, device, ts, action, address, size, allocated, module, operator, file, line,
        ROW_NUMBER() OVER (PARTITION BY run, capture, device ORDER BY ts, number) AS place
    FROM python.memory_events WHERE action IN ('alloc', 'free', 'free_requested') AND address IS NOT NULL
), ranked AS (
    SELECT run, capture, rank, device, ts, allocated, place,
        ROW_NUMBER() OVER (PARTITION BY run, capture, device ORDER BY allocated DESC, place) AS nth
    FROM event WHERE allocated IS NOT NULL
), top AS (
    SELECT run, capture, rank, device, ts, allocated, place FROM ranked WHERE nth = 1
), allocation AS (
    -- An allocation ends where something happens to its address again.
    SELECT run, capture, device, action, size, module, operator, file, line, place,
        LEAD(place) OVER (PARTITION BY run, capture, device, address ORDER BY place) AS gone
    FROM event
), held AS (
    SELECT top.run AS run, top.capture AS capture, top.rank AS rank, top.device AS device, top.ts AS ts, top.allocated AS peak,
        module, operator, file, line, SUM(size) AS bytes, COUNT(*) AS blocks
    FROM allocation JOIN top ON allocation.run = top.run AND allocation.capture = top.capture AND allocation.device = top.device
    WHERE action = 'alloc' AND allocation.place <= top.place AND (gone IS NULL OR gone > top.place)
    GROUP BY top.run, top.capture, top.rank, top.device, top.ts, top.allocated, module, operator, file, line
), known AS (
    SELECT run, capture, device, SUM(bytes) AS bytes FROM held GROUP BY run, capture, device
), older AS (
    SELECT top.run AS run, top.capture AS capture, top.rank AS rank, top.device AS device, top.ts AS ts, top.allocated AS peak,
        top.allocated - COALESCE(known.bytes, 0) AS bytes
    FROM top LEFT JOIN known ON top.run = known.run AND top.capture = known.capture AND top.device = known.device
), share AS (
    SELECT run, capture, rank, device, ts, peak, 'capture' AS origin, module, operator, file, line, bytes, blocks FROM held
    UNION ALL
    SELECT run, capture, rank, device, ts, peak,
        CASE WHEN bytes > 0 THEN 'before the capture' ELSE 'freed unseen' END, NULL, NULL, NULL, NULL, bytes, NULL
    FROM older WHERE bytes <> 0
)
SELECT
    run,                                          -- text: The run.
    capture,                                      -- text: Name of the capture.
    rank,                                         -- int: Global rank; NULL where the capture does not say.
    device,                                       -- text: cpu, cuda:0, ….
    ts,                                           -- timestamp: When the most was allocated: after the first event with the largest python.memory_events.allocated. Captures that do not say it, or no addresses, have no rows.
    peak,                                         -- bigint, B: What was allocated then.
    origin,                                       -- text: capture (allocated within it); before the capture (all that is older, in one row); or freed unseen, with negative bytes, where the capture has allocations but not all of their frees (by threads that the profiler does not see).
    module,                                       -- text: Module that allocated it; NULL where that is not known.
    operator,                                     -- text: Operator that allocated it.
    file,                                         -- text: File of the innermost Python frame of the program's own; NULL where stacks were not recorded.
    line,                                         -- int: Line of that frame.
    bytes,                                        -- bigint, B: Bytes that it held at the peak.
    blocks,                                       -- bigint: Allocations that are; NULL for what is older than the capture.
    100.0 * bytes / NULLIF(peak, 0) AS share      -- double, %: bytes of peak.
FROM share
