-- rule: gloo-for-gpu
-- family: communication
-- kind: fact
-- confidence: measured
-- needs: python.nccl_trace.backend
-- also: gloo, nccl, backend
-- says: {who} trains on a GPU and sends {size} MB a step with gloo, which copies everything to the host and back
-- do: init_process_group('nccl'), or 'cpu:gloo,cuda:nccl' where tensors of the host are sent too
-- record: recorded where torch.distributed is used
WITH e AS (
    SELECT * FROM $newest_environment
), n AS (
    SELECT pid, SUM(bytes) / 1e6 / COUNT(DISTINCT step) AS size FROM python.nccl_trace WHERE $window AND backend = 'gloo' GROUP BY pid
)
SELECT e.rank, 'backend' AS seen, 'warn' AS severity, n.size FROM e JOIN n ON e.pid = n.pid
WHERE e.device LIKE 'cuda%' AND n.size >= 1
