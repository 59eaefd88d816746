-- rule: uneven-all-to-all
-- family: communication
-- kind: fact
-- confidence: measured
-- needs: python.nccl_trace.operation_type
-- also: experts, mixture of experts, moe, all_to_all, load balancing
-- says: {who}: sends or receives {times} times as much by all_to_all as the ranks do on average, and the others wait for it
-- do: balance what is routed (an auxiliary loss, a capacity factor), or move experts
-- record: recorded where torch.distributed is used
WITH n AS (
    SELECT pid, rank, step, SUM(bytes) AS bytes FROM python.nccl_trace WHERE $window AND operation_type LIKE '%all_to_all%' GROUP BY pid, rank, step
), mean AS (
    SELECT step, AVG(bytes) AS bytes FROM n GROUP BY step HAVING COUNT(*) > 1 AND AVG(bytes) > 0
)
SELECT n.rank, 'bytes' AS seen, 'note' AS severity, median(n.bytes / mean.bytes) AS times FROM n JOIN mean ON n.step = mean.step
GROUP BY n.pid, n.rank HAVING COUNT(*) >= 20 AND median(n.bytes / mean.bytes) >= 1.25
