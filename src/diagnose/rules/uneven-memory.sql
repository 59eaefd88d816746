-- rule: uneven-memory
-- family: memory
-- kind: fact
-- confidence: measured
-- needs: python.memory.max_allocated
-- also: imbalance, memory imbalance, uneven memory, rank 0
-- says: {who} needs {peak} MB of GPU memory at its peak, and the median rank {usual} MB: the largest decides which batch fits
-- do: look at what that rank has alone: tensors that all ranks gather on it, a checkpoint loaded without map_location='cpu', an uneven split of layers or experts
-- record: it is recorded where training is on a GPU
WITH m AS (
    SELECT host, pid, rank, MAX(max_allocated) AS peak FROM python.memory
    WHERE $window AND device <> 'cpu' AND rank IS NOT NULL GROUP BY host, pid, rank
), usual AS (
    SELECT median(peak) AS peak FROM m HAVING COUNT(*) > 1
)
SELECT m.rank, 'peak' AS seen, 'note' AS severity, m.peak, usual.peak AS usual
FROM m CROSS JOIN usual JOIN $gpu_memory AS total ON m.host = total.host
WHERE m.peak >= 1.2 * usual.peak AND m.peak >= 0.5 * total.memory
