-- rule: device-memory-full
-- family: memory
-- kind: fact
-- confidence: measured
-- needs: python.memory.max_allocated
-- also: oom, out of memory, cuda out of memory, retries, num_alloc_retries
-- says: {who}: {how}
-- do: smaller batches with gradient accumulation, activation checkpointing (torch.utils.checkpoint), bfloat16 autocast, or sharded parameters (FSDP)
-- record: it is recorded where training is on a GPU
WITH m AS (
    SELECT host, pid, rank, device, MAX(retries) - MIN(retries) AS retries, MAX(max_allocated) AS peak, COUNT(*) AS steps
    FROM python.memory WHERE $window AND device <> 'cpu' GROUP BY host, pid, rank, device HAVING COUNT(*) >= 20
), f AS (
    SELECT m.*, total.memory, m.peak / total.memory AS share FROM m LEFT JOIN $gpu_memory AS total ON m.host = total.host
)
SELECT rank, device AS seen, CASE WHEN retries > 0 THEN 'warn' ELSE 'note' END AS severity, retries, peak, share,
    CASE WHEN retries > 0 THEN 'torch''s allocator had no GPU memory left ' || CASE retries WHEN 1 THEN 'once' ELSE CAST(retries AS VARCHAR) || ' times' END || ' in '
            || CAST(steps AS VARCHAR) || ' steps, and freed its cache to try again, which waits for the GPU'
        ELSE 'at the peak, tensors held ' || CAST(CAST(round(peak) AS BIGINT) AS VARCHAR) || ' of the '
            || CAST(CAST(round(memory) AS BIGINT) AS VARCHAR) || ' MB that the GPU has' END AS how
FROM f WHERE retries > 0 OR share >= 0.92
