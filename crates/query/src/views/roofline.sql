-- gpu.roofline: One row per kernel or operator of each capture whose floating-point operations are known: how fast it was against what its device can do at most, by the roofline model of Williams, Waterman and Patterson. Kernels have operations and bytes by XLA's count, and collectives are left out, for what limits these is the links; operators have operations by torch.profiler's formulas, where shapes were recorded, and bytes of the tensors that go in.
-- example: SELECT name, seconds, intensity, achieved_tflops, attainable_tflops, percent, bound FROM gpu.roofline ORDER BY seconds DESC LIMIT 10
WITH work AS (
    SELECT run, capture, rank, 'kernel' AS kind, name, 16 AS bits, 1 AS calls, duration AS seconds, flops, bytes_accessed AS bytes
    FROM gpu.kernels WHERE flops > 0 AND category <> 'communication'
    UNION ALL
    SELECT run, capture, rank, 'operator', name, CASE
            WHEN regexp_like(input_types, '(?i)"(c10::)?(bfloat16|half)"') THEN 16
            WHEN regexp_like(input_types, '(?i)"float"') THEN 32
        END, 1, COALESCE(device_duration, duration), flops, input_bytes
    FROM python.operators WHERE flops > 0
), total AS (
    -- The bytes of some calls say nothing of all.
    SELECT run, capture, rank, kind, name, bits, SUM(calls) AS calls, SUM(seconds) AS seconds, SUM(flops) AS flops,
        CASE WHEN COUNT(bytes) = SUM(calls) THEN CAST(SUM(bytes) AS DOUBLE) END AS bytes
    FROM work GROUP BY run, capture, rank, kind, name, bits
), peak AS (
    SELECT captures.run AS run, captures.capture AS capture, device, tflops_16, tflops_32, memory_gbps
    FROM python.captures captures JOIN gpu.device_peaks peaks ON captures.devices LIKE pattern AND captures.devices NOT LIKE '%, %'
), limited AS (
    SELECT total.*, device, memory_gbps AS peak_gbps, CASE bits WHEN 16 THEN tflops_16 WHEN 32 THEN tflops_32 END AS peak_tflops,
        flops / NULLIF(bytes, 0) AS intensity
    FROM total LEFT JOIN peak ON total.run = peak.run AND total.capture = peak.capture
)
SELECT
    run,                                          -- text: The run.
    capture,                                      -- text: Name of the capture.
    rank,                                         -- int: Global rank; NULL where the capture does not say.
    kind,                                         -- text: kernel or operator.
    name,                                         -- text: Its name.
    bits,                                         -- bigint: Bits of the floating-point numbers that go in, 16 or 32: which peak counts. NULL where they are others or not known; XLA's kernels count as 16.
    calls,                                        -- bigint: How often it ran.
    seconds,                                      -- double, s: Time on the device; of an operator without a device, on the host.
    flops,                                        -- double, FLOP: Floating-point operations.
    bytes,                                        -- double, B: Bytes that it reads and writes by XLA's count; of an operator those of the tensors that go in, so that it moves at least as many. NULL where those of some call are not known.
    intensity,                                    -- double, FLOP/B: flops over bytes; of an operator at most that.
    flops / NULLIF(seconds, 0) / 1e12 AS achieved_tflops, -- double, TFLOP/s: flops over seconds.
    bytes / NULLIF(seconds, 0) / 1e9 AS achieved_gbps, -- double, GB/s: bytes over seconds.
    device,                                       -- text: The device, in gpu.device_peaks; NULL where it is not known, or the capture has several kinds.
    peak_tflops,                                  -- double, TFLOP/s: What the device can do at most, with numbers of that many bits.
    peak_gbps,                                    -- double, GB/s: What its memory can give at most.
    LEAST(peak_tflops, intensity * peak_gbps / 1e3) AS attainable_tflops, -- double, TFLOP/s: What this can reach at most: the peak, or what its memory can feed at this intensity.
    100 * (flops / NULLIF(seconds, 0) / 1e12) / NULLIF(LEAST(peak_tflops, intensity * peak_gbps / 1e3), 0) AS percent, -- double, %: achieved_tflops, of attainable_tflops.
    CASE WHEN peak_tflops IS NULL OR intensity IS NULL THEN NULL
        WHEN intensity * peak_gbps / 1e3 < peak_tflops THEN 'memory' ELSE 'compute' END AS bound -- text: compute or memory: which of the two limits it. NULL where the peaks or the bytes are not known.
FROM limited
