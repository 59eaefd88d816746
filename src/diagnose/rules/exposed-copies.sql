-- rule: exposed-copies
-- family: capture
-- kind: fact
-- confidence: likely
-- needs: gpu.kernels.duration >= 50
-- also: memcpy, copies, pageable, pinned, pin_memory, htod, transfer
-- says: {who}: in {share:%} of {capture} the GPU did nothing but copy, mostly {copies}
-- do: {remedy}
-- record: probe capture, in a run that trains on a GPU
WITH t AS (
    SELECT g.run, g.capture, g.rank, g.exposed_memcpy, g.total FROM gpu.timeline g JOIN $captures AS c ON g.run = c.run AND g.capture = c.capture
    WHERE c.kernels >= 50 AND g.total > 0 AND g.exposed_memcpy >= 0.1 * g.total
), k AS (
    SELECT run, capture, name, ROW_NUMBER() OVER (PARTITION BY run, capture ORDER BY SUM(duration) DESC) AS place
    FROM gpu.kernels WHERE kind = 'memcpy' GROUP BY run, capture, name
)
SELECT t.rank, 'copies' AS seen, CASE WHEN t.exposed_memcpy >= 0.25 * t.total THEN 'warn' ELSE 'note' END AS severity, t.capture,
    t.exposed_memcpy / t.total AS share, replace(k.name, 'Memcpy ', '') AS copies,
    CASE WHEN k.name LIKE '%Pageable%' THEN 'pin_memory=True in the DataLoader, then .to(device, non_blocking=True): from other memory, copies hold up the host'
        WHEN k.name LIKE '%DtoD%' OR k.name LIKE '%Device -> Device%' THEN 'fewer copies on the GPU: contiguous(), cat(), clone() and padding make them; probe profile --by module says whose they are'
        ELSE 'copy the next batch while the model runs: .to(device, non_blocking=True), before it is needed; keep on the GPU what goes back and forth' END AS remedy
FROM t LEFT JOIN k ON t.run = k.run AND t.capture = k.capture AND k.place = 1
