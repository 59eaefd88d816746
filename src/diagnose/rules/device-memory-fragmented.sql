-- rule: device-memory-fragmented
-- family: memory
-- kind: fact
-- confidence: likely
-- needs: python.memory.max_reserved
-- also: fragmentation, reserved, caching allocator, expandable_segments
-- says: {who}: torch's allocator reserves {reserved} MB of GPU memory where tensors held {peak} MB at the peak: the rest is in blocks that do not fit what is asked for
-- do: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, or pad inputs to a few sizes; probe capture --memory shows the blocks
-- record: it is recorded where training is on a GPU
WITH m AS (
    SELECT host, pid, rank, device, MAX(retries) - MIN(retries) AS retries, MAX(max_allocated) AS peak, MAX(max_reserved) AS reserved
    FROM python.memory WHERE $window AND device <> 'cpu' GROUP BY host, pid, rank, device HAVING COUNT(*) >= 20
)
-- Memory that is reserved and not used does no harm until memory is short.
SELECT m.rank, m.device AS seen, CASE WHEN m.retries > 0 THEN 'warn' ELSE 'note' END AS severity, m.peak, m.reserved, m.retries
FROM m LEFT JOIN $gpu_memory AS total ON m.host = total.host
WHERE m.peak > 0 AND m.reserved >= 1.5 * m.peak AND (m.retries > 0 OR m.reserved >= 0.8 * total.memory)
