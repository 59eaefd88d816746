-- rule: communication-bound
-- family: communication
-- kind: fact
-- confidence: likely
-- needs: python.nccl_trace.backend
-- also: bandwidth, network, nccl, exposed communication, overlap
-- says: every rank waits for communication in {share:%} of a step, also the one that comes last: {size} MB a step go over the network at {speed} GB/s
-- do: fewer bytes (no_sync with gradient accumulation, bfloat16 gradients), more of it behind backward (DDP's bucket_cap_mb, FSDP's prefetch), a faster link (NCCL_DEBUG=INFO says which one NCCL took)
-- record: recorded where torch.distributed is used
WITH s AS (
    SELECT step, MIN(comm_time / duration) AS share, COUNT(*) AS ranks FROM python.steps WHERE $window AND duration > 0 GROUP BY step
), n AS (
    SELECT pid, step, SUM(bytes) AS bytes, median(busbw_gbps) AS speed FROM python.nccl_trace WHERE $window AND backend = 'nccl' GROUP BY pid, step
), w AS (
    SELECT median(bytes) / 1e6 AS size, median(speed) AS speed FROM n HAVING COUNT(*) > 0
)
SELECT CAST(NULL AS INT) AS rank, 'share' AS seen, 'note' AS severity, median(s.share) AS share, MAX(w.size) AS size, COALESCE(MAX(w.speed), 0) AS speed
FROM s CROSS JOIN w WHERE s.ranks > 1 HAVING COUNT(*) >= 40 AND median(s.share) >= 0.5
