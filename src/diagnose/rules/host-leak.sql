-- rule: host-leak
-- family: memory
-- kind: trend
-- confidence: measured
-- needs: python.memory.rss
-- least: 30
-- growth: 5
-- also: leak, memory leak, rss
-- says: {who}: memory grows all the time: {first} to {last} MB, {slope} MB a step
-- do: find what is kept, such as losses with their graphs (keep loss.item()): probe eval "import gc, collections; print(collections.Counter(type(o).__name__ for o in gc.get_objects()).most_common(10))"
-- record: let it train for longer: it is measured ten times a second at most
WITH shape AS (
    SELECT pid, step, replace(btrim(input_shape, '[]'), ' ', '') AS sizes FROM python.torch_trace
    WHERE $window AND depth = 0 AND stage = 'forward' AND input_shape IS NOT NULL
), size AS (
    SELECT pid, step, SUM(COALESCE(TRY_CAST(split_part(sizes, ',', 1) AS DOUBLE), 1) * COALESCE(TRY_CAST(split_part(sizes, ',', 2) AS DOUBLE), 1)
        * COALESCE(TRY_CAST(split_part(sizes, ',', 3) AS DOUBLE), 1) * COALESCE(TRY_CAST(split_part(sizes, ',', 4) AS DOUBLE), 1)) AS size
    FROM shape GROUP BY pid, step
), larger AS (
    -- Whose inputs become larger and larger: their activations do, too.
    SELECT pid FROM size WHERE size > 0 GROUP BY pid
    HAVING COUNT(*) >= 20 AND corr(step, size) >= 0.7 AND MAX(size) >= 1.2 * MIN(size)
)
SELECT rank, step AS x, rss AS y FROM python.memory WHERE $window AND device = 'cpu' AND step < $last AND rss IS NOT NULL
    AND pid NOT IN (SELECT pid FROM larger)
