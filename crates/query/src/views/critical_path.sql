-- python.critical_path: What the time of each ProfilerStep of each capture went to, so that the rows of a step add up to it: the path that leads back from the end of the step on the host. It goes to the device where the host waited for it (in a call that synchronizes, or a launch, copy or free of more than 0.1 ms in which something ended on the device), and to the host where a device had nothing to do until something was launched. Saving time that is not on the path does not make the step shorter.
-- example: SELECT step, location, category, name, seconds, percent, shorten FROM python.critical_path ORDER BY step, seconds DESC LIMIT 20
-- example: SELECT rank, location, category, SUM(seconds) AS seconds FROM python.critical_path GROUP BY rank, location, category ORDER BY rank, seconds DESC
WITH step AS (
    -- Plain strings here and below: the shared buffers of string views would be counted anew in each of the many sorts.
    SELECT arrow_cast(run, 'Utf8') AS run, arrow_cast(capture, 'Utf8') AS capture, rank, CAST(substr(name, 14) AS BIGINT) AS step, CAST(ts AS BIGINT) AS begins,
        CAST(ts AS BIGINT) + CAST(ROUND(duration * 1e9) AS BIGINT) AS ends
    FROM python.operators WHERE kind = 'annotation' AND regexp_like(name, '^ProfilerStep#[0-9]{1,18}$')
), collective AS (
    -- When the last rank came, and which it was.
    SELECT kernels.run AS run, group_name, collective, seq, MAX(CAST(kernels.ts AS BIGINT)) AS came, COUNT(DISTINCT kernels.rank) AS in_it,
        LAST_VALUE(kernels.rank ORDER BY kernels.ts) AS last_rank
    FROM gpu.kernels kernels JOIN python.captures captures ON kernels.run = captures.run AND kernels.capture = captures.capture
    WHERE seq IS NOT NULL AND kernels.rank IS NOT NULL AND clock = 'unix' GROUP BY kernels.run, group_name, collective, seq
), device AS (
    SELECT arrow_cast(kernels.run, 'Utf8') AS run, arrow_cast(capture, 'Utf8') AS capture, CASE category WHEN 'computation' THEN 1 WHEN 'communication' THEN 2 ELSE 4 END AS class, name,
        CAST(ts AS BIGINT) AS begins, CAST(ts AS BIGINT) + CAST(ROUND(duration * 1e9) AS BIGINT) AS ends,
        CAST(launch_ts AS BIGINT) + CAST(ROUND(launch_duration * 1e9) AS BIGINT) AS launched,
        CASE WHEN last_rank <> rank AND in_it > 1 THEN came END AS came, last_rank
    FROM gpu.kernels kernels LEFT JOIN collective ON kernels.run = collective.run AND kernels.group_name = collective.group_name
        AND kernels.collective = collective.collective AND kernels.seq = collective.seq
    WHERE kind <> 'sync'
), arrived AS (
    SELECT run, capture, class, name, begins, ends, last_rank, COALESCE(came, begins) AS came FROM device
), host AS (
    SELECT arrow_cast(run, 'Utf8') AS run, arrow_cast(capture, 'Utf8') AS capture, depth, kind, name, parent AS around, CAST(ts AS BIGINT) AS begins, CAST(ts AS BIGINT) + CAST(ROUND(duration * 1e9) AS BIGINT) AS ends
    FROM python.operators
    UNION ALL
    SELECT arrow_cast(run, 'Utf8') AS run, arrow_cast(capture, 'Utf8') AS capture, 100000 AS depth, 'call' AS kind, name, operator AS around, CAST(ts AS BIGINT) AS begins, CAST(ts AS BIGINT) + CAST(ROUND(duration * 1e9) AS BIGINT) AS ends
    FROM gpu.launches
), in_order AS (
    SELECT *, MAX(ends) OVER (PARTITION BY run, capture ORDER BY begins, ends ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS ended_before
    FROM device
), wait AS (
    -- Calls that wait for the device, and what ended on it. A launch waits where the device's queue is full.
    SELECT arrow_cast(run, 'Utf8') AS run, arrow_cast(capture, 'Utf8') AS capture, CAST(ts AS BIGINT) + CAST(ROUND(duration * 1e9) AS BIGINT) AS at, CAST(ts AS BIGINT) AS begins, CAST(NULL AS BIGINT) AS ended
    FROM gpu.launches WHERE regexp_like(name, 'Synchronize|^(cuda|hip)Memcpy$') OR duration > 1e-4 AND regexp_like(name, 'Launch|Memcpy|Memset|Free')
    UNION ALL SELECT arrow_cast(run, 'Utf8') AS run, arrow_cast(capture, 'Utf8') AS capture, CAST(ts AS BIGINT) + CAST(ROUND(duration * 1e9) AS BIGINT) AS at, NULL AS begins,
        CAST(ts AS BIGINT) + CAST(ROUND(duration * 1e9) AS BIGINT) AS ended
    FROM gpu.kernels WHERE kind <> 'sync'
), waited AS (
    SELECT run, capture, begins, MAX(ended) OVER (PARTITION BY run, capture ORDER BY at, begins NULLS FIRST ROWS UNBOUNDED PRECEDING) AS ended FROM wait
), turn AS (
    -- Where the path, going back, leaves the host, and where it comes back to it.
    SELECT run, capture, ended AS at, 'device' AS before, CAST(NULL AS BIGINT) AS launched FROM waited WHERE begins IS NOT NULL AND ended >= begins
    UNION ALL SELECT run, capture, begins AS at, 'delay' AS before, launched FROM in_order WHERE launched >= COALESCE(ended_before, launched)
    UNION ALL SELECT run, capture, CASE WHEN side > 0 THEN begins ELSE ends END AS at, 'host' AS before, NULL AS launched FROM step CROSS JOIN (VALUES (1), (-1)) AS sides (side)
), followed AS (
    SELECT *, LEAD(before) OVER (PARTITION BY run, capture ORDER BY at, before) AS after FROM turn
), cut AS (
    -- Where the location that the path is at ends: 1 host, 2 device, 3 the delay of a launch.
    SELECT run, capture, CASE WHEN side = 1 THEN at ELSE LEAST(launched, at) END AS at, CASE WHEN side = 2 OR before = 'host' THEN 1 WHEN before = 'device' THEN 2 ELSE 3 END AS location
    FROM followed CROSS JOIN (VALUES (1), (2)) AS sides (side) WHERE before <> 'delay' AND side = 1 OR before = 'delay' AND after = 'device'
), placed AS (
    -- A sum of changes of the location is the location that the path is at.
    SELECT run, capture, at, location, LEAD(location) OVER (PARTITION BY run, capture ORDER BY at, location) AS next_location,
        LAG(location) OVER (PARTITION BY run, capture ORDER BY at, location) AS last_location
    FROM cut
), event AS (
    -- Classes: 0 an idle device, 1 computation, 2 communication, 3 a wait for another rank, 4 memory, 5 host, 6 delay. What is marked begins a
    -- stretch of its class, which lasts to the next of the class; a step begins one of each.
    SELECT run, capture, at, 0 AS tie, -1 AS class, 0 AS mark, 0 AS change, arrow_cast(NULL, 'Utf8') AS label,
        COALESCE(next_location, 0) - CASE WHEN last_location IS NULL THEN 0 ELSE location END AS turn, 0 AS step
    FROM placed
    UNION ALL SELECT run, capture, CASE WHEN side = -1 THEN ends ELSE begins END AS at, CASE side WHEN -1 THEN -1 WHEN 0 THEN 1 ELSE 2 END AS tie, side AS class,
        CASE WHEN side = -1 THEN 0 ELSE 1 END AS mark, 0 AS change, arrow_cast(NULL, 'Utf8') AS label, 0 AS turn,
        CASE side WHEN -1 THEN -step - 1 WHEN 0 THEN step + 1 ELSE 0 END AS step
    FROM step CROSS JOIN (VALUES (-1), (0), (1), (2), (3), (4), (6)) AS sides (side)
    UNION ALL SELECT run, capture, CASE WHEN side > 0 THEN begins ELSE ends END AS at, side * (2 + depth) AS tie, 5 AS class, 1 AS mark, 0 AS change,
        arrow_cast(CASE
            WHEN side > 0 AND name NOT LIKE 'ProfilerStep#%' THEN CASE WHEN regexp_like(name, '^enumerate\(Data') THEN 'dataloader' ELSE kind END || '|' || name
            WHEN side < 0 AND around NOT LIKE 'ProfilerStep#%' THEN CASE WHEN regexp_like(around, '^enumerate\(Data') THEN 'dataloader' ELSE 'operator' END || '|' || around
            ELSE '' END, 'Utf8') AS label, 0 AS turn, 0 AS step
    FROM host CROSS JOIN (VALUES (1), (-1)) AS sides (side)
    -- A collective waits until the last rank comes.
    UNION ALL SELECT run, capture, CASE side WHEN 1 THEN begins WHEN 4 THEN ends ELSE GREATEST(begins, LEAST(came, ends)) END AS at,
        CASE WHEN side IN (1, 3) THEN 3 ELSE -1 END AS tie, CASE WHEN side IN (1, 2) THEN 3 ELSE class END AS class,
        CASE WHEN side IN (1, 3) THEN 1 ELSE 0 END AS mark, CASE WHEN side IN (1, 3) THEN 1 ELSE -1 END AS change,
        arrow_cast(CASE side WHEN 1 THEN CAST(last_rank AS TEXT) || '|' || name WHEN 3 THEN name END, 'Utf8') AS label, 0 AS turn, 0 AS step
    FROM arrived CROSS JOIN (VALUES (1), (2), (3), (4)) AS sides (side) WHERE came > begins OR side > 2
), counted AS (
    SELECT run, capture, class, mark, label, LEAD(at) OVER (PARTITION BY run, capture ORDER BY at, tie) - at AS length,
        SUM(turn) OVER sofar AS location, SUM(step) OVER sofar - 1 AS step,
        SUM(CASE WHEN class = 1 THEN change ELSE 0 END) OVER sofar AS computing, SUM(CASE WHEN class = 2 THEN change ELSE 0 END) OVER sofar AS communicating,
        SUM(CASE WHEN class = 3 THEN change ELSE 0 END) OVER sofar AS waiting, SUM(CASE WHEN class = 4 THEN change ELSE 0 END) OVER sofar AS copying,
        SUM(CASE WHEN class = 0 THEN mark ELSE 0 END) OVER sofar AS n0, SUM(CASE WHEN class = 1 THEN mark ELSE 0 END) OVER sofar AS n1,
        SUM(CASE WHEN class = 2 THEN mark ELSE 0 END) OVER sofar AS n2, SUM(CASE WHEN class = 3 THEN mark ELSE 0 END) OVER sofar AS n3,
        SUM(CASE WHEN class = 4 THEN mark ELSE 0 END) OVER sofar AS n4, SUM(CASE WHEN class = 5 THEN mark ELSE 0 END) OVER sofar AS n5
    FROM event WINDOW sofar AS (PARTITION BY run, capture ORDER BY at, tie ROWS UNBOUNDED PRECEDING)
), on_path AS (
    SELECT run, capture, class, mark, label, step, n0, n1, n2, n3, n4, n5, CASE WHEN step >= 0 THEN length END AS length,
        CASE location WHEN 1 THEN 5 WHEN 3 THEN 6 ELSE CASE WHEN computing > 0 THEN 1 WHEN communicating > 0 THEN 2
            WHEN waiting > 0 THEN 3 WHEN copying > 0 THEN 4 ELSE 0 END END AS runs
    FROM counted
), summed AS (
    SELECT run, capture, class, mark, label, step, CASE class
            WHEN 0 THEN SUM(CASE WHEN runs = 0 THEN length END) OVER (PARTITION BY run, capture, n0)
            WHEN 1 THEN SUM(CASE WHEN runs = 1 THEN length END) OVER (PARTITION BY run, capture, n1)
            WHEN 2 THEN SUM(CASE WHEN runs = 2 THEN length END) OVER (PARTITION BY run, capture, n2)
            WHEN 3 THEN SUM(CASE WHEN runs = 3 THEN length END) OVER (PARTITION BY run, capture, n3)
            WHEN 4 THEN SUM(CASE WHEN runs = 4 THEN length END) OVER (PARTITION BY run, capture, n4)
            WHEN 5 THEN SUM(CASE WHEN runs = 5 THEN length END) OVER (PARTITION BY run, capture, n5)
            ELSE SUM(CASE WHEN runs = 6 THEN length END) OVER (PARTITION BY run, capture, n0) END AS length
    FROM on_path
), piece AS (
    SELECT run, capture, step, CASE class WHEN 5 THEN 'host' WHEN 6 THEN 'delay' ELSE 'device' END AS location, CASE class
            WHEN 0 THEN 'idle' WHEN 1 THEN 'computation' WHEN 2 THEN 'communication' WHEN 3 THEN 'other rank' WHEN 4 THEN 'memory'
            WHEN 5 THEN COALESCE(NULLIF(split_part(label, '|', 1), ''), 'other') ELSE 'launch delay'
        END AS category, CASE WHEN class IN (3, 5) THEN NULLIF(substr(label, strpos(label, '|') + 1), '') ELSE label END AS name,
        CASE class WHEN 3 THEN CAST(split_part(label, '|', 1) AS INT) END AS waits_for, SUM(length) AS length
    FROM summed WHERE mark = 1 AND length > 0 GROUP BY run, capture, step, class, label
), whole AS (
    SELECT run, capture, step, MIN(rank) AS rank, SUM(ends - begins) AS length FROM step GROUP BY run, capture, step
)
SELECT
    piece.run AS run,                             -- text: The run.
    piece.capture AS capture,                     -- text: Name of the capture.
    rank,                                         -- int: Global rank; NULL where the capture does not say.
    piece.step AS step,                           -- bigint: Number of the ProfilerStep.
    location,                                     -- text: host, device, or delay: from the end of a launch to the beginning on the device.
    category,                                     -- text: On the host call (of the runtime or driver), dataloader, operator, annotation or other (in none); on a device computation, communication, other rank (a collective before the last rank came to it), memory or idle; launch delay.
    name,                                         -- text: What ran: on the host the innermost of what began last, on a device what began last of the category. NULL for none.
    waits_for,                                    -- int: Of category other rank, the rank that came last. It is known where the captures have times from 1970 and the numbers of collectives.
    SUM(piece.length) / 1e9 AS seconds,           -- double, s: Its time on the path; adds up to the step.
    100.0 * SUM(piece.length) / NULLIF(MAX(whole.length), 0) AS percent, -- double, %: Of the step.
    CASE category
        WHEN 'call' THEN 'launch less often: fused kernels, torch.compile, CUDA graphs'
        WHEN 'dataloader' THEN 'load data ahead: more DataLoader workers, a larger prefetch_factor'
        WHEN 'operator' THEN 'less work on the host: larger operators, torch.compile'
        WHEN 'annotation' THEN 'less work of the program on the host between operators'
        WHEN 'other' THEN 'less work of the program on the host between operators'
        WHEN 'computation' THEN 'faster or fewer kernels: lower precision, fusion'
        WHEN 'communication' THEN 'overlap it with computation, or send less'
        WHEN 'other rank' THEN 'let the rank that comes last come earlier'
        WHEN 'memory' THEN 'copy less, or from pinned memory beside computation'
        WHEN 'idle' THEN 'fewer waits between streams'
        ELSE 'launch earlier: fewer waits of the host for the device' END AS shorten -- text: What would make it shorter.
FROM piece JOIN whole ON piece.run = whole.run AND piece.capture = whole.capture AND piece.step = whole.step
GROUP BY piece.run, piece.capture, rank, piece.step, location, category, name, waits_for
