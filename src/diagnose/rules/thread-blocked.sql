-- rule: thread-blocked
-- family: host
-- kind: time
-- confidence: measured
-- needs: python.steps.run_delay
-- persistence: 0.3
-- levels: 5, 10, 20
-- explains: irregular-stall, odd-sibling, work-between-parts, slower-than-reference
-- also: blocked, sleep, lock, fsync, waiting
-- says: {who}: for {blocked:ms} of each step the training thread neither computes nor waits for a processor, batches or ranks: it sleeps, or waits for a lock, a file, another thread or another process, in {part}{location}
-- do: take what it waits for out of the loop: write files, read from the network and talk to other processes on another thread, and hold locks for less time
-- record: the kernel must count it (/proc/PID/schedstat)
WITH e AS (
    -- Of a device it is known that the thread waits for it.
    SELECT pid, bool_and(device = 'cpu') AS on_host, MAX(torch_threads) AS threads FROM python.environment WHERE pid IN ($pids) AND device IS NOT NULL GROUP BY pid
), b AS (
    -- What loads, communicates, validates or saves waits for others.
    SELECT pid, rank, step, part, part_time,
        GREATEST(duration - cpu_time - run_delay - data_time - comm_time - COALESCE(validation_time, 0) - COALESCE(checkpoint_time, 0), 0.0) AS seconds
    FROM $part_times AS t WHERE $window AND cpu_time IS NOT NULL AND run_delay IS NOT NULL AND kind IS DISTINCT FROM 'call'
), s AS (
    SELECT pid, part, function, COALESCE(library_file, '') LIKE '%/torch/%' AS in_torch, concat(file, ':', CAST(line AS VARCHAR)) AS line FROM python.stack_samples
    WHERE $window AND NOT running AND part IN ('forward', 'backward', 'optimizer', 'other')
), parts AS (
    SELECT pid, part, ROW_NUMBER() OVER (PARTITION BY pid ORDER BY COUNT(*) DESC, part) AS position, COUNT(*) AS samples FROM s GROUP BY pid, part
), lines AS (
    SELECT pid, part, function, line, bool_or(in_torch) AS in_torch, ROW_NUMBER() OVER (PARTITION BY pid, part ORDER BY COUNT(*) DESC, line) AS position,
        COUNT(*) AS samples
    FROM s WHERE line IS NOT NULL GROUP BY pid, part, function, line
), whole AS (
    SELECT pid, COUNT(*) AS samples FROM s GROUP BY pid
), w AS (
    -- Where stacks do not say in which part it is, it is the one in which nothing is expected.
    SELECT e.pid, COALESCE(parts.part, 'other') AS part,
        CASE WHEN 2 * lines.samples >= parts.samples THEN concat(', mostly at ', lines.line, ' in ', lines.function, ' (sampled)') ELSE '' END AS location
    FROM e LEFT JOIN parts ON e.pid = parts.pid AND parts.position = 1 AND parts.samples >= 5
        LEFT JOIN lines ON e.pid = lines.pid AND lines.part = parts.part AND lines.position = 1 LEFT JOIN whole ON e.pid = whole.pid
    -- Of several ranks a part of the model may wait for the others (FSDP, pipelines).
    WHERE e.on_host
        -- Threads that compute together wait for one another: in all parts, and within torch.
        AND (e.threads = 1 OR NOT lines.in_torch AND lines.samples >= 8 AND lines.samples >= 0.8 * whole.samples)
        AND ((SELECT COUNT(DISTINCT pid) FROM b) = 1 OR COALESCE(parts.part, 'other') = 'other')
)
SELECT b.step, b.rank, w.part, w.location, b.seconds AS blocked,
    LEAST(b.seconds, b.part_time) AS cost, 0.0005 AS ref
FROM b JOIN w ON b.pid = w.pid AND b.part = w.part
