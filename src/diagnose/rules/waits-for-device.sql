-- rule: waits-for-device
-- family: host
-- kind: fact
-- confidence: measured
-- needs: python.sync_points.part
-- also: synchronize, cuda synchronize, sync points, implicit synchronization
-- says: {who} waits for the GPU {count} times in each step at {line} ({seen}, in {part_of_step}): each time the host can launch nothing until the GPU has done all that was launched before
-- do: keep values on the GPU and read them all at once, at larger intervals; torch.cuda.synchronize() is for measuring only
-- record: it is recorded in one of 16 steps at first, and later in one of 64
WITH e AS (
    SELECT pid, rank, step, part, operation, concat(file, ':', CAST(line AS VARCHAR)) AS line, SUM(count) AS count
    FROM python.sync_points WHERE $window AND device LIKE 'cuda%' AND file IS NOT NULL
    GROUP BY pid, rank, step, part, operation, file, line
), l AS (
    SELECT pid, rank, part, operation, line, MIN(count) AS count FROM e GROUP BY pid, rank, part, operation, line
), o AS (
    SELECT *, ROW_NUMBER() OVER (PARTITION BY pid ORDER BY count DESC, line) AS place FROM l
    WHERE count >= 8
)
SELECT rank, line, operation AS seen, 'note' AS severity, count, part AS part_of_step FROM o WHERE place = 1
