-- rule: many-small-collectives
-- family: communication
-- kind: time
-- part: comm
-- confidence: likely
-- needs: python.nccl_trace.bytes
-- persistence: 0.9
-- saving: ceiling
-- explains: slower-than-reference
-- also: buckets, small collectives
-- says: {who} issues {count} collectives a step, half of them of {median_bytes} bytes or less, and waits for each
-- do: flatten what they send into a few tensors of 25 MB at most (torch._utils._flatten_dense_tensors, or DistributedDataParallel, which does it)
-- record: recorded where torch.distributed is used
WITH n AS (
    SELECT pid, step, COUNT(*) AS count, SUM(bytes) AS bytes, median(bytes) AS median_bytes FROM python.nccl_trace
    WHERE $window AND operation_type IN ('all_reduce', 'reduce', 'broadcast', 'all_gather') GROUP BY pid, step
)
SELECT s.step, s.rank, s.comm_time AS cost, s.comm_time * LEAST(ceil(n.bytes / 25e6), n.count) / n.count AS ref, n.count,
    n.median_bytes
FROM python.steps s JOIN n ON s.pid = n.pid AND s.step = n.step
WHERE s.step BETWEEN $first AND $last AND n.count >= 8 * ceil(n.bytes / 25e6) AND n.median_bytes <= 262144
