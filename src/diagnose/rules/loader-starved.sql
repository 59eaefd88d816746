-- rule: loader-starved
-- family: data
-- kind: time
-- part: data
-- confidence: measured
-- needs: python.data_trace.queue_depth
-- gate: empty >= 0.5
-- explains: rank-slow, periodic-stall, slower-than-reference
-- also: loader, dataloader, data loading, workers, num_workers
-- says: {who}: the loader is not ready: {empty:%} of batches were asked for before they were there ({num_workers} workers)
-- do: more workers (num_workers), or a faster __getitem__ and collate_fn
-- record: it is asked where a DataLoader has workers
WITH s AS (
    SELECT pid, step, COALESCE(run_delay, 0) AS delay FROM python.steps WHERE $window
), b AS (
    SELECT d.rank, d.pid, d.step, d.wait, d.queue_depth, d.num_workers, s.delay FROM python.data_trace d
    JOIN s ON d.pid = s.pid AND d.step = s.step
    WHERE d.num_workers > 0 AND d.batch_index >= d.num_workers * d.prefetch_factor
), ready AS (
    SELECT pid, approx_percentile_cont(wait, 0.1) FILTER (WHERE queue_depth > 0) AS wait FROM b GROUP BY pid
)
SELECT b.step, b.rank, SUM(b.wait) AS cost, COUNT(*) * COALESCE(MAX(ready.wait), 0.0005) AS ref,
    -- A worker says that a batch is there before it has sent it. The training thread may wait for a processor, too.
    AVG(CASE WHEN queue_depth = 0 OR b.wait - delay >= GREATEST(5 * COALESCE(ready.wait, 0.0005), 0.002) THEN 1.0 ELSE 0.0 END) AS empty, MAX(num_workers) AS num_workers
FROM b JOIN ready ON b.pid = ready.pid GROUP BY b.step, b.rank
