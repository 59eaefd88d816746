-- rule: gil-held-elsewhere
-- family: host
-- kind: time
-- parts: together
-- confidence: likely
-- needs: python.stack_samples.gil_elsewhere >= 100
-- saving: ceiling
-- levels: 5, 101, 101
-- explains: work-between-parts, slower-than-reference
-- also: gil, global interpreter lock, threads
-- says: {who}: while the main thread was not running, {thread} held the GIL in {share:%} of {samples} samples, mostly at {line} in {function} (sampled)
-- do: do that work in a process of its own (multiprocessing), or in code that releases the GIL
-- record: probe diagnose --ask samples a live run for 4 s; PROBE_STACK_SAMPLING must not be off
WITH s AS (
    -- A main thread that waits for batches, ranks or a disk does not wait for the lock.
    SELECT pid, part, gil_elsewhere AND NOT running AND part IN ('forward', 'backward', 'optimizer', 'other') AS held,
        COALESCE(gil_thread, 'another thread') AS thread, COALESCE(gil_function, '?') AS function,
        COALESCE(concat(gil_file, ':', CAST(gil_line AS VARCHAR)), '?') AS line
    FROM python.stack_samples WHERE $window
), whole AS (
    SELECT pid, COUNT(*) AS samples, AVG(CASE WHEN held THEN 1.0 ELSE 0.0 END) AS share FROM s GROUP BY pid
), parts AS (
    SELECT pid, part, AVG(CASE WHEN held THEN 1.0 ELSE 0.0 END) AS share FROM s
    WHERE part IN ('forward', 'backward', 'optimizer', 'other') GROUP BY pid, part
), lines AS (
    SELECT pid, thread, function, line, ROW_NUMBER() OVER (PARTITION BY pid ORDER BY COUNT(*) DESC, line) AS place
    FROM s WHERE held GROUP BY pid, thread, function, line
)
SELECT t.step, t.rank, parts.part, lines.line, lines.thread, lines.function, whole.samples, whole.share,
    parts.share * CASE parts.part WHEN 'forward' THEN t.forward_time WHEN 'backward' THEN t.backward_time
        WHEN 'optimizer' THEN t.optimizer_time ELSE t.other_time END AS cost, 0.0 AS ref
FROM python.steps t JOIN whole ON t.pid = whole.pid JOIN parts ON t.pid = parts.pid
    JOIN lines ON t.pid = lines.pid AND lines.place = 1
WHERE t.step BETWEEN $first AND $last AND t.pid IN ($pids) AND whole.samples >= 100 AND whole.share >= 0.2
