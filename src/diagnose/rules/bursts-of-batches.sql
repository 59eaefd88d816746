-- rule: bursts-of-batches
-- family: data
-- kind: time
-- part: data
-- confidence: likely
-- needs: python.data_trace.queue_depth
-- explains: periodic-stall, irregular-stall
-- gate: waits >= 5
-- saving: ceiling
-- also: prefetch, prefetch_factor, queue, bursts
-- says: {who}: the loader keeps up in {ready:%} of the batches, and makes the loop wait now and then: {waits} times, {longest:ms} the longest, with {prefetch} batches ahead for each worker{took}
-- do: prefetch_factor={more}: batches that take unequally long then even out
-- record: recorded where a DataLoader has workers
WITH d AS (
    SELECT pid, rank, step, wait, queue_depth, prefetch_factor, batch_index, num_workers, fetch_time, COALESCE(worker, batch_index % num_workers) AS worker
    FROM python.data_trace
    WHERE $window AND num_workers > 0 AND batch_index >= num_workers * prefetch_factor AND queue_depth IS NOT NULL
), s AS (
    SELECT pid, median(duration) AS duration FROM python.steps WHERE $window GROUP BY pid
), took AS (
    -- In the time that a worker takes for a batch, the loop uses one of each worker. A worker that takes longer on average is slow all
    -- the time.
    SELECT pid, MAX(mean) AS mean, MAX(longest) AS longest
    FROM (SELECT pid, worker, AVG(fetch_time) AS mean, MAX(fetch_time) AS longest FROM d GROUP BY pid, worker) GROUP BY pid
), w AS (
    SELECT d.pid, median(wait) AS usual, AVG(CASE WHEN queue_depth > 0 THEN 1.0 ELSE 0.0 END) AS ready, MAX(prefetch_factor) AS prefetch,
        -- How many batches ahead the longest one would need.
        GREATEST(CAST(ceil(MAX(took.longest) / MAX(num_workers * s.duration)) AS BIGINT) + 1, 2 * MAX(prefetch_factor)) AS more, MAX(took.longest) AS took
    FROM d JOIN s ON d.pid = s.pid JOIN took ON d.pid = took.pid GROUP BY d.pid
    -- If no batch takes that long, workers were late for another reason, such as that they had no processor.
    HAVING MAX(took.longest) IS NULL OR MAX(took.mean) < 0.9 * MAX(num_workers * s.duration) AND MAX(took.longest) >= MAX(num_workers * s.duration)
), l AS (
    -- Batches come in order: the loop waits for the one whose turn it is, even if others are ready.
    SELECT d.*, w.usual, w.ready, w.prefetch, w.more, w.took, CASE WHEN d.wait >= 5 * w.usual AND d.wait >= 0.001 AND d.wait >= 0.1 * s.duration THEN d.wait END AS long
    FROM d JOIN w ON d.pid = w.pid JOIN s ON d.pid = s.pid
    WHERE w.ready >= 0.7 AND w.more <= 16
)
SELECT step, rank, MAX(usual) + SUM(COALESCE(long - usual, 0.0)) AS cost, MAX(usual) AS ref, 1 - SUM(COUNT(long)) OVER (PARTITION BY pid) / CAST(SUM(COUNT(*)) OVER (PARTITION BY pid) AS DOUBLE) AS ready, MAX(prefetch) AS prefetch,
    MAX(more) AS more, COALESCE('; it took a worker up to ' || CAST(CAST(round(1000 * MAX(took)) AS BIGINT) AS VARCHAR) || ' ms to load one', '') AS took,
    SUM(COUNT(long)) OVER (PARTITION BY pid) AS waits, MAX(MAX(long)) OVER (PARTITION BY pid) AS longest
FROM l GROUP BY pid, rank, step
