-- rule: reduced-each-micro-step
-- family: communication
-- kind: time
-- part: comm
-- confidence: measured
-- needs: python.nccl_trace.bytes
-- persistence: 0.9
-- explains: slower-than-reference
-- also: no_sync, gradient accumulation
-- says: {who} reduces all gradients in each of {micro_steps} micro steps
-- do: with model.no_sync(): around all micro steps but the last
-- record: recorded where torch.distributed is used
WITH n AS (
    SELECT pid, step, SUM(bytes) AS bytes FROM python.nccl_trace
    WHERE $window AND operation_type IN ('all_reduce', 'reduce_scatter', 'reduce_scatter_tensor') GROUP BY pid, step
), e AS (
    SELECT pid, MAX(parameter_bytes) AS bytes FROM python.environment WHERE pid IN ($pids) GROUP BY pid
)
SELECT s.step, s.rank, s.comm_time AS cost, s.comm_time / s.micro_steps AS ref, s.micro_steps
FROM python.steps s JOIN n ON s.pid = n.pid AND s.step = n.step JOIN e ON s.pid = e.pid
WHERE s.step BETWEEN $first AND $last AND s.micro_steps > 1 AND n.bytes >= 0.9 * s.micro_steps * e.bytes
