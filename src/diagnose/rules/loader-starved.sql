-- rule: loader-starved
-- family: data
-- kind: time
-- part: data
-- confidence: measured
-- needs: python.data_trace.queue_depth
-- gate: empty >= 0.5
-- explains: rank-slow, periodic-stall, slower-than-reference
-- also: loader, dataloader, data loading, workers, num_workers
-- says: {who}: the loader is not ready: {empty:%} of batches were asked for with an empty queue ({num_workers} workers)
-- do: more workers (num_workers), or a faster __getitem__ and collate_fn
-- record: it is asked where a DataLoader has workers
WITH b AS (
    SELECT rank, pid, step, wait, queue_depth, num_workers FROM python.data_trace
    WHERE $window AND num_workers > 0 AND batch_index >= num_workers * prefetch_factor
), ready AS (
    SELECT pid, approx_percentile_cont(wait, 0.1) FILTER (WHERE queue_depth > 0) AS wait FROM b GROUP BY pid
)
SELECT b.step, b.rank, SUM(b.wait) AS cost, COUNT(*) * COALESCE(MAX(ready.wait), 0.0005) AS ref,
    AVG(CASE WHEN queue_depth = 0 THEN 1.0 ELSE 0.0 END) AS empty, MAX(num_workers) AS num_workers
FROM b JOIN ready ON b.pid = ready.pid GROUP BY b.step, b.rank
