-- rule: cudnn-benchmark-off
-- family: device
-- kind: fact
-- confidence: possible
-- needs: python.environment.cudnn_benchmark
-- also: cudnn, cudnn.benchmark, convolutions, autotune
-- says: {who}: convolutions are {share:%} of the GPU's time in modules and always get inputs of one size, {shape}, and cuDNN does not try which of its algorithms is fastest for it
-- do: torch.backends.cudnn.benchmark = True, before the first batch
-- record: it is noted where training is on a GPU
WITH e AS (
    SELECT * FROM $newest_environment
), chosen AS (
    SELECT pid, rank FROM e WHERE device LIKE 'cuda%' AND cudnn_benchmark IS FALSE AND cudnn_deterministic IS NOT TRUE
        AND deterministic_algorithms IS NOT TRUE
), m AS (
    SELECT pid, SUM(CASE WHEN module_type LIKE 'Conv%' THEN duration ELSE 0 END) / SUM(duration) AS share FROM python.torch_trace
    WHERE $window AND stage IN ('forward', 'backward') AND duration > 0 AND device LIKE 'cuda%' GROUP BY pid
), size AS (
    SELECT pid, MAX(input_shape) AS shape FROM python.torch_trace
    WHERE $window AND depth = 0 AND stage = 'forward' AND input_shape IS NOT NULL GROUP BY pid HAVING COUNT(DISTINCT input_shape) = 1
)
SELECT chosen.rank, 'cudnn.benchmark' AS seen, 'note' AS severity, m.share, size.shape
FROM chosen JOIN m ON chosen.pid = m.pid JOIN size ON chosen.pid = size.pid
WHERE m.share >= 0.3 AND chosen.pid IN $busy_gpu
