-- rule: gil-held-elsewhere
-- family: host
-- kind: time
-- parts: together
-- confidence: likely
-- needs: python.stack_samples.gil_elsewhere >= 10
-- saving: estimate
-- levels: 5, 15, 101
-- explains: thread-blocked, work-between-parts, span-between-parts, slower-than-reference
-- also: gil, global interpreter lock, threads
-- says: {who}: while the main thread was not running, {thread} held the GIL in {share:%} of {samples} samples, mostly at {line} in {function} (sampled)
-- do: {remedy}
-- record: probe diagnose --ask samples a live run for 4 s; PROBE_STACK_SAMPLING must not be off
WITH s AS (
    -- A main thread that waits for batches, ranks or a disk does not wait for the lock.
    SELECT pid, part, NOT running AND part IN ('forward', 'backward', 'optimizer', 'other') AS idle,
        gil_elsewhere AND NOT running AND part IN ('forward', 'backward', 'optimizer', 'other') AS held,
        COALESCE(gil_thread, 'another thread') AS thread, COALESCE(gil_function, '?') AS function,
        COALESCE(concat(gil_file, ':', CAST(gil_line AS VARCHAR)), '?') AS line
    -- Steps get a second of samples or two in a short run, so those of the warm-up count, too.
    FROM python.stack_samples WHERE pid IN ($pids) AND step BETWEEN LEAST(GREATEST($first - 128, 8), $first) AND $last
), e AS (
    SELECT pid, bool_and(device = 'cpu') AS on_host FROM python.environment WHERE pid IN ($pids) AND device IS NOT NULL GROUP BY pid
), whole AS (
    SELECT pid, COUNT(*) AS samples, AVG(CASE WHEN held THEN 1.0 ELSE 0.0 END) AS share,
        SUM(CASE WHEN idle THEN 1 ELSE 0 END) AS idle, SUM(CASE WHEN held THEN 1.0 ELSE 0.0 END) AS held FROM s GROUP BY pid
), sure AS (
    -- The least that the shares are with 97.5 % confidence (Wilson's interval): of all samples, and of those in which the thread was idle.
    SELECT *, (share + 1.9208 / samples - 1.96 * sqrt(share * (1 - share) / samples + 0.9604 / samples / samples)) / (1 + 3.8416 / samples) AS of_all,
        (of_idle + 1.9208 / idle - 1.96 * sqrt(of_idle * (1 - of_idle) / idle + 0.9604 / idle / idle)) / (1 + 3.8416 / idle) AS of_idle_sure
    FROM (SELECT *, held / idle AS of_idle FROM whole WHERE idle > 0)
), parts AS (
    SELECT pid, part, AVG(CASE WHEN held THEN 1.0 ELSE 0.0 END) AS share, SUM(CASE WHEN held THEN 1.0 ELSE 0.0 END) AS held FROM s
    WHERE part IN ('forward', 'backward', 'optimizer', 'other') GROUP BY pid, part
), lines AS (
    SELECT pid, thread, function, line, ROW_NUMBER() OVER (PARTITION BY pid ORDER BY COUNT(*) DESC, line) AS position
    FROM s WHERE held GROUP BY pid, thread, function, line
), t AS (
    -- How long the thread neither had a processor nor was ready for one. Of a device that says nothing, as it is waited for.
    SELECT t.*, CASE WHEN e.on_host THEN GREATEST(duration - cpu_time - run_delay - data_time - comm_time, 0.0) END AS blocked
    FROM $part_times AS t LEFT JOIN e ON t.pid = e.pid WHERE t.step BETWEEN $first AND $last AND t.pid IN ($pids)
), c AS (
    SELECT t.*, parts.held, parts.share * t.part_time AS sampled FROM t JOIN parts ON t.pid = parts.pid AND t.part = parts.part
)
SELECT c.step, c.rank, c.part, lines.line, lines.thread, lines.function, sure.samples, sure.share,
    CASE WHEN lines.function LIKE '%pin_memory_loop%'
        THEN 'that thread of torch''s DataLoader unpickles batches: fewer and larger tensors in a batch, and torch.multiprocessing.set_sharing_strategy(''file_system'') make that cheaper'
        ELSE 'do that work in a process of its own (multiprocessing), or in code that releases the GIL' END AS remedy,
    -- On a device it is a note: what the thread waits for is not known.
    CASE WHEN c.blocked IS NULL THEN c.sampled * LEAST(1.0, COALESCE(0.12 * c.duration / NULLIF(SUM(c.sampled) OVER (PARTITION BY c.pid, c.step), 0.0), 1.0))
        ELSE c.blocked * c.held / sure.idle END AS cost, 0.0 AS ref
FROM c JOIN sure ON c.pid = sure.pid JOIN lines ON c.pid = lines.pid AND lines.position = 1
WHERE sure.share >= 0.2 AND sure.of_all >= 0.1
    -- How long the thread was blocked is measured: where nearly all of that was for the lock, few samples say so. Where a neighbour
    -- has the processors, too, it is seldom blocked.
    OR c.blocked IS NOT NULL AND sure.of_idle >= 0.8 AND sure.of_idle_sure >= 0.5
