-- rule: ranks-differ
-- family: environment
-- kind: fact
-- confidence: measured
-- needs: python.environment.torch_version
-- also: heterogeneous, mixed versions, environment, configuration
-- says: {subject} differs between ranks: {values}
-- do: make them equal, unless it is meant so: every rank waits for the slowest
-- record: agents note it when training begins
WITH e AS (
    SELECT * FROM $newest_environment
), v AS (
    SELECT e.rank, c.name, CASE c.name WHEN 'torch_version' THEN torch_version WHEN 'cuda_version' THEN cuda_version WHEN 'gpu_models' THEN gpu_models
        WHEN 'cpu_model' THEN cpu_model WHEN 'parameter_dtype' THEN parameter_dtype WHEN 'autocast_dtype' THEN COALESCE(autocast_dtype, 'off')
        WHEN 'float32_matmul_precision' THEN float32_matmul_precision WHEN 'torch_threads' THEN CAST(torch_threads AS VARCHAR)
        WHEN 'cudnn_benchmark' THEN CAST(cudnn_benchmark AS VARCHAR) WHEN 'batch_size' THEN CAST(batch_size AS VARCHAR)
        WHEN 'num_workers' THEN CAST(num_workers AS VARCHAR) WHEN 'optimizer' THEN optimizer WHEN 'nccl_debug' THEN COALESCE(nccl_debug, 'off') END AS value
    FROM e CROSS JOIN (VALUES ('torch_version'), ('cuda_version'), ('gpu_models'), ('cpu_model'), ('parameter_dtype'), ('autocast_dtype'),
        ('float32_matmul_precision'), ('torch_threads'), ('cudnn_benchmark'), ('batch_size'), ('num_workers'), ('optimizer'), ('nccl_debug')) AS c(name)
    WHERE e.rank IS NOT NULL
), each AS (
    SELECT name, value, COUNT(*) AS ranks, MIN(rank) AS first FROM v WHERE value IS NOT NULL GROUP BY name, value
)
SELECT CAST(NULL AS INT) AS rank, name AS subject, 'differs' AS seen, 'note' AS severity,
    string_agg(value || CASE WHEN ranks = 1 THEN ' (rank ' || CAST(first AS VARCHAR) || ')'
        ELSE ' (' || CAST(ranks AS VARCHAR) || ' ranks, as ' || CAST(first AS VARCHAR) || ')' END, ', ' ORDER BY first) AS values
FROM each GROUP BY name HAVING COUNT(*) > 1
