-- rule: slower-and-slower
-- family: regression
-- kind: trend
-- confidence: measured
-- needs: python.steps.cpu_time
-- least: 60
-- growth: 10
-- also: drift
-- says: {who}: a step takes more and more processor time: {first:ms}, then {last:ms}
-- do: find what grows with the steps and is gone through in each of them, such as a history that is kept: compare two flame graphs (probe flamegraph), early and late
-- record: agents of this version measure it on Linux
WITH shape AS (
    SELECT pid, step, replace(btrim(input_shape, '[]'), ' ', '') AS sizes FROM python.torch_trace
    WHERE $window AND depth = 0 AND stage = 'forward' AND input_shape IS NOT NULL
), size AS (
    SELECT pid, step, SUM(COALESCE(TRY_CAST(split_part(sizes, ',', 1) AS DOUBLE), 1) * COALESCE(TRY_CAST(split_part(sizes, ',', 2) AS DOUBLE), 1)
        * COALESCE(TRY_CAST(split_part(sizes, ',', 3) AS DOUBLE), 1) * COALESCE(TRY_CAST(split_part(sizes, ',', 4) AS DOUBLE), 1)) AS size
    FROM shape GROUP BY pid, step
), larger AS (
    -- Whose inputs become larger and larger: that takes more and more time, as it should.
    SELECT pid FROM size WHERE size > 0 GROUP BY pid
    HAVING COUNT(*) >= 20 AND corr(step, size) >= 0.7 AND MAX(size) >= 1.2 * MIN(size)
)
SELECT rank, step AS x, cpu_time AS y FROM python.steps WHERE $window AND cpu_time IS NOT NULL
    AND pid NOT IN (SELECT pid FROM larger)
