-- python.memory_peak: What held memory at the peak: per capture and device one row per module, operator and line with allocations at that moment, and one for what is older than the capture. They add up to peak.
-- example: SELECT origin, module, operator, file, line, bytes, blocks, share FROM python.memory_peak ORDER BY capture, device, bytes DESC LIMIT 20
-- example: SELECT capture, rank, device, module, SUM(bytes) AS bytes, SUM(share) AS share FROM python.memory_peak GROUP BY capture, rank, device, module ORDER BY bytes DESC LIMIT 10
WITH event AS (
    SELECT run, capture, rank, device, number, ts, action, address, size, allocated, module, operator, file, line
    FROM python.memory_events WHERE action IN ('alloc', 'free', 'free_requested') AND address IS NOT NULL
), highest AS (
    SELECT run, capture, rank, device, MAX(allocated) AS peak, FIRST_VALUE(number ORDER BY allocated DESC, number) AS number,
        FIRST_VALUE(ts ORDER BY allocated DESC, number) AS ts
    FROM event WHERE allocated IS NOT NULL GROUP BY run, capture, rank, device
), latest AS (
    -- What happened last to each address up to there.
    SELECT event.run AS run, event.capture AS capture, event.device AS device, MAX(event.number) AS number
    FROM event JOIN highest ON event.run = highest.run AND event.capture = highest.capture AND event.device = highest.device
    WHERE event.number <= highest.number GROUP BY event.run, event.capture, event.device, event.address
), held AS (
    SELECT event.run AS run, event.capture AS capture, event.rank AS rank, event.device AS device, module, operator, file, line,
        SUM(size) AS bytes, COUNT(*) AS blocks
    FROM event JOIN latest ON event.run = latest.run AND event.capture = latest.capture AND event.device = latest.device
        AND event.number = latest.number
    WHERE action = 'alloc' GROUP BY event.run, event.capture, event.rank, event.device, module, operator, file, line
), part AS (
    -- Stands for the rest.
    SELECT run, capture, rank, device, ts, peak, CAST(NULL AS VARCHAR) AS module, CAST(NULL AS VARCHAR) AS operator,
        CAST(NULL AS VARCHAR) AS file, CAST(NULL AS INT) AS line, CAST(NULL AS BIGINT) AS bytes, CAST(NULL AS BIGINT) AS blocks
    FROM highest
    UNION ALL
    SELECT run, capture, rank, device, NULL, NULL, module, operator, file, line, bytes, blocks FROM held
), whole AS (
    SELECT run, capture, rank, device, MAX(ts) OVER (PARTITION BY run, capture, device) AS ts, peak AS rest,
        MAX(peak) OVER (PARTITION BY run, capture, device) AS peak, module, operator, file, line, blocks,
        COALESCE(bytes, peak - COALESCE(SUM(bytes) OVER (PARTITION BY run, capture, device), 0)) AS bytes
    FROM part
)
SELECT
    run,                                          -- text: The run.
    capture,                                      -- text: Name of the capture.
    rank,                                         -- int: Global rank; NULL where the capture does not say.
    device,                                       -- text: cpu, cuda:0, ….
    ts,                                           -- timestamp: When the most was allocated: after the first event with the largest python.memory_events.allocated. Captures that do not say it, or no addresses, have no rows.
    peak,                                         -- bigint, B: What was allocated then.
    CASE WHEN rest IS NULL THEN 'capture' WHEN bytes > 0 THEN 'before the capture' ELSE 'freed unseen' END AS origin, -- text: capture (allocated within it); before the capture (all that is older, in one row); or freed unseen, with negative bytes, where the capture has allocations but not all of their frees (by threads that the profiler does not see).
    module,                                       -- text: Module that allocated it; NULL where that is not known.
    operator,                                     -- text: Operator that allocated it.
    file,                                         -- text: File of the innermost Python frame of the program's own; NULL where stacks were not recorded.
    line,                                         -- int: Line of that frame.
    bytes,                                        -- bigint, B: Bytes that it held at the peak.
    blocks,                                       -- bigint: Allocations that are; NULL for what is older than the capture.
    100.0 * bytes / NULLIF(peak, 0) AS share      -- double, %: bytes of peak.
FROM whole WHERE rest IS NULL OR bytes <> 0
