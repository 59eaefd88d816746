-- rule: exposed-copies
-- family: capture
-- kind: fact
-- confidence: likely
-- needs: gpu.kernels.duration >= 50
-- also: memcpy, copies, pageable, pinned, pin_memory, htod, transfer
-- says: {who}: in {share:%} of the time that was captured the GPU did nothing but copy; most of the copies' time is {copies}
-- do: {remedy}
-- record: probe capture, in a run that trains on a GPU
WITH t AS (
    SELECT g.run, g.capture, g.rank, g.exposed_memcpy, g.total FROM gpu.timeline g JOIN $captures AS c ON g.run = c.run AND g.capture = c.capture
    WHERE c.kernels >= 50 AND g.total > 0 AND g.exposed_memcpy >= 0.1 * g.total
), k AS (
    SELECT k.name FROM gpu.kernels k JOIN t ON k.run = t.run AND k.capture = t.capture WHERE k.kind = 'memcpy'
    GROUP BY k.name ORDER BY SUM(k.duration) DESC LIMIT 1
)
SELECT t.rank, 'copies' AS seen, CASE WHEN t.exposed_memcpy >= 0.25 * t.total THEN 'warn' ELSE 'note' END AS severity,
    t.exposed_memcpy / t.total AS share, replace(k.name, 'Memcpy ', '') AS copies,
    CASE WHEN k.name LIKE '%DtoH%' THEN 'read fewer values from the GPU (item(), cpu(), print of a tensor), or copy them with non_blocking=True to pinned memory and look later'
        WHEN k.name LIKE '%Pageable%' THEN 'pin_memory=True in the DataLoader, then .to(device, non_blocking=True): copies from pageable memory block the host'
        WHEN k.name LIKE '%HtoD%' THEN 'copy the next batch while the model runs: .to(device, non_blocking=True) before it is needed; keep on the GPU what is copied again and again'
        WHEN k.name LIKE '%PtoP%' THEN 'copies between GPUs: send less, or while the model computes'
        WHEN k.name LIKE '%DtoD%' THEN 'fewer copies on the GPU: contiguous(), cat(), clone() and padding make them; probe profile --by module says whose they are'
        ELSE 'probe profile --by operator says which operators copy' END AS remedy
FROM t CROSS JOIN k
