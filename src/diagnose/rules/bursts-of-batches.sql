-- rule: bursts-of-batches
-- family: data
-- kind: time
-- part: data
-- confidence: likely
-- needs: python.data_trace.queue_depth
-- gate: waits >= 5
-- levels: 5, 101, 101
-- saving: ceiling
-- also: prefetch, prefetch_factor, queue, bursts
-- says: {who}: the loader keeps up in {ready:%} of the batches, and runs dry now and then: {waits} waits, {longest:ms} the longest, with {prefetch} batches ahead for each worker
-- do: prefetch_factor larger (4 or 8): batches that take unequally long then even out
-- record: recorded where a DataLoader has workers
WITH d AS (
    SELECT pid, rank, step, wait, queue_depth, prefetch_factor, batch_index, num_workers FROM python.data_trace
    WHERE $window AND num_workers > 0 AND batch_index >= num_workers * prefetch_factor AND queue_depth IS NOT NULL
), w AS (
    SELECT pid, median(wait) AS usual, AVG(CASE WHEN queue_depth > 0 THEN 1.0 ELSE 0.0 END) AS ready, MAX(prefetch_factor) AS prefetch FROM d GROUP BY pid
), l AS (
    SELECT d.*, w.usual, w.ready, w.prefetch, CASE WHEN d.queue_depth = 0 AND d.wait >= 5 * w.usual AND d.wait >= 0.001 THEN d.wait END AS long FROM d JOIN w ON d.pid = w.pid
    WHERE w.ready >= 0.7
)
SELECT step, rank, MAX(usual) + SUM(COALESCE(long - usual, 0.0)) AS cost, MAX(usual) AS ref, MAX(ready) AS ready, MAX(prefetch) AS prefetch,
    SUM(COUNT(long)) OVER (PARTITION BY pid) AS waits, MAX(MAX(long)) OVER (PARTITION BY pid) AS longest
FROM l GROUP BY pid, rank, step
