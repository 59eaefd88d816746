-- rule: debug-switches
-- family: environment
-- kind: fact
-- confidence: measured
-- needs: python.environment.anomaly_detection
-- also: anomaly detection, detect_anomaly, debug, CUDA_LAUNCH_BLOCKING, NCCL_DEBUG, TORCH_DISTRIBUTED_DEBUG, deterministic
-- says: {who}: {subject} is on, {costs}
-- do: {off}
-- record: agents of this version note it
WITH e AS (
    SELECT *, ROW_NUMBER() OVER (PARTITION BY pid ORDER BY ts DESC) AS newest,
        SUM(CASE WHEN anomaly_detection THEN 1 ELSE 0 END) OVER (PARTITION BY pid) AS anomalies
    FROM python.environment WHERE pid IN ($pids)
), e1 AS (
    SELECT * FROM e WHERE newest = 1
)
SELECT rank, 'anomaly detection' AS subject, CASE WHEN anomaly_detection THEN 'warn' ELSE 'note' END AS severity,
    'or was for a while: each operation of the backward pass is traced and checked for NaN' AS costs,
    'torch.autograd.set_detect_anomaly(False), once the error is found' AS off
FROM e1 WHERE anomalies > 0
-- Another row would say that it ended: switches are read every 256 steps.
UNION ALL SELECT rank, 'a profiler of torch', CASE WHEN step + 256 < $last THEN 'warn' ELSE 'note' END,
    CASE WHEN step + 256 < $last THEN concat('since step ', CAST(step AS VARCHAR), ', and records every operation')
        ELSE 'or was for a while, and records every operation' END,
    'a schedule (torch.profiler.schedule) profiles a few steps only' FROM e1 WHERE torch_profiler
UNION ALL SELECT rank, 'CUDA_LAUNCH_BLOCKING', 'warn', 'so that the host waits for every kernel', 'unset CUDA_LAUNCH_BLOCKING'
FROM e1 WHERE cuda_launch_blocking = '1' AND device LIKE 'cuda%'
UNION ALL SELECT rank, 'TORCH_DISTRIBUTED_DEBUG=DETAIL', 'warn', 'so that ranks compare every collective before it is made',
    'unset TORCH_DISTRIBUTED_DEBUG' FROM e1 WHERE upper(torch_distributed_debug) = 'DETAIL' AND wrapper IS NOT NULL
UNION ALL SELECT rank, concat('NCCL_DEBUG=', nccl_debug), 'note', 'which writes a line for many calls', 'NCCL_DEBUG=WARN'
FROM e1 WHERE upper(nccl_debug) IN ('INFO', 'TRACE') AND device LIKE 'cuda%'
UNION ALL SELECT rank, 'deterministic algorithms', 'note', 'and some operations have only slow ones that are',
    'torch.use_deterministic_algorithms(False), where results need not repeat to the bit' FROM e1 WHERE deterministic_algorithms
