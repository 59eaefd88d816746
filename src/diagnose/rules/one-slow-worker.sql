-- rule: one-slow-worker
-- family: data
-- kind: time
-- part: data
-- confidence: measured
-- needs: python.data_trace.tasks_outstanding
-- explains: loader-starved, periodic-stall, irregular-stall, slower-than-reference
-- also: shard, slow worker, slow shard, worker
-- says: {who}: worker {worker} of {num_workers} keeps the others waiting: {hits} of {all_hits} long waits were for its batches{took}
-- do: look at what this worker reads (its shard, its files), or spread slow samples over all workers; DataLoader(in_order=False) no longer waits for it
-- record: recorded where a DataLoader has workers
WITH b AS (
    -- Where it is not known which worker made a batch, its index says so, because workers take turns.
    SELECT rank, pid, step, dataset, wait, num_workers, fetch_time, COALESCE(worker, batch_index % num_workers) AS worker,
        -- All that is missing can be one worker's: the others have made what was requested of them. If all workers are slow, long waits
        -- are one worker's too: that whose turn comes first.
        tasks_outstanding - queue_depth <= prefetch_factor AS is_one_behind
    FROM python.data_trace
    WHERE $window AND num_workers > 1 AND batch_index >= num_workers * prefetch_factor
), usual AS (
    SELECT pid, dataset, approx_percentile_cont(wait, 0.25) AS wait, approx_percentile_cont(wait, 0.95) AS longest FROM b GROUP BY pid, dataset
), long AS (
    SELECT b.pid, b.dataset, b.num_workers, b.worker, COUNT(*) AS hits
    FROM b JOIN usual ON b.pid = usual.pid AND b.dataset = usual.dataset
    -- A loop that had no processor for a moment waits for a while, too, and not nearly as long.
    WHERE b.is_one_behind AND b.wait > 3 * usual.wait AND b.wait > usual.wait + 0.001 AND b.wait > 0.25 * usual.longest
    GROUP BY b.pid, b.dataset, b.num_workers, b.worker
), share AS (
    SELECT *, SUM(hits) OVER (PARTITION BY pid, dataset, num_workers) AS all_hits FROM long
), slow AS (
    -- Chernoff's bound of the chance that this many of the long waits are one worker's, for all workers together.
    SELECT *, hits * ln(hits / all_hits * num_workers)
        + CASE WHEN hits < all_hits THEN (all_hits - hits) * ln((1 - hits / all_hits) / (1 - 1.0 / num_workers)) ELSE 0 END
        - ln(CAST(num_workers AS DOUBLE)) AS surprise
    FROM (SELECT pid, dataset, num_workers, worker, CAST(hits AS DOUBLE) AS hits, CAST(all_hits AS DOUBLE) AS all_hits FROM share)
    WHERE hits >= 4 AND hits >= 0.8 * all_hits
), took AS (
    -- How long workers took to load a batch (ms), where that was measured.
    SELECT b.pid, b.dataset, b.num_workers, round(1000 * AVG(CASE WHEN b.worker = slow.worker THEN fetch_time END), 1) AS own,
        round(1000 * AVG(CASE WHEN b.worker <> slow.worker THEN fetch_time END), 1) AS others
    FROM b JOIN slow ON b.pid = slow.pid AND b.dataset = slow.dataset AND b.num_workers = slow.num_workers
    GROUP BY b.pid, b.dataset, b.num_workers
)
SELECT b.step, b.rank, SUM(b.wait) AS cost,
    SUM(CASE WHEN b.worker = slow.worker THEN usual.wait ELSE b.wait END) AS ref,
    MAX(slow.worker) AS worker, MAX(b.num_workers) AS num_workers, MAX(slow.hits) AS hits, MAX(slow.all_hits) AS all_hits,
    COALESCE('; it took ' || CAST(MAX(took.own) AS VARCHAR) || ' ms to load a batch on average, and the others '
        || CAST(MAX(took.others) AS VARCHAR) || ' ms', '') AS took
FROM b JOIN slow ON b.pid = slow.pid AND b.dataset = slow.dataset AND b.num_workers = slow.num_workers AND slow.surprise >= 14
JOIN usual ON b.pid = usual.pid AND b.dataset = usual.dataset
JOIN took ON b.pid = took.pid AND b.dataset = took.dataset AND b.num_workers = took.num_workers
GROUP BY b.step, b.rank
