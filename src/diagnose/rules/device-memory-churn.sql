-- rule: device-memory-churn
-- family: memory
-- kind: fact
-- confidence: measured
-- needs: python.memory.device_frees >= 40
-- also: empty_cache, cudaMalloc, cudaFree, fragmentation, caching allocator
-- says: {who}: torch's allocator gives GPU memory back and asks the driver for it again {frees} times a step, in {often:%} of the steps: each time waits for the GPU, and takes much longer than memory from its cache
-- do: take torch.cuda.empty_cache() out of the loop; where sizes of inputs vary, PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, or pad them to a few sizes
-- record: it is recorded where training is on a GPU, with torch 2.3 or later
WITH m AS (
    SELECT pid, rank, device, step,
        device_frees - LAG(device_frees) OVER (PARTITION BY pid, device ORDER BY step) AS frees,
        device_allocs - LAG(device_allocs) OVER (PARTITION BY pid, device ORDER BY step) AS allocs
    FROM python.memory WHERE $window AND device <> 'cpu'
), c AS (
    SELECT pid, rank, device, AVG(frees) AS frees, AVG(CASE WHEN frees > 0 AND allocs > 0 THEN 1.0 ELSE 0.0 END) AS often
    FROM m WHERE frees IS NOT NULL GROUP BY pid, rank, device
)
SELECT rank, device AS seen, CASE WHEN often >= 0.5 THEN 'warn' ELSE 'note' END AS severity, round(frees, 1) AS frees, often
FROM c WHERE often >= 0.1
