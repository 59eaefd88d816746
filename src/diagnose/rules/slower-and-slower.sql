-- rule: slower-and-slower
-- family: regression
-- kind: trend
-- confidence: measured
-- needs: python.steps.cpu_time
-- least: 60
-- growth: 10
-- explains: work-between-parts
-- also: drift, detach, retain_graph
-- says: {who}: a step takes more and more processor time{grows}: {first:ms}, then {last:ms}
-- do: {remedy}
-- record: agents of this version measure it on Linux
WITH grown AS (
    -- From the first quarter of the steps to the last.
    SELECT pid, part, median(part_time) FILTER (WHERE 4 * (step - $first) > 3 * ($last - $first))
        - median(part_time) FILTER (WHERE 4 * (step - $first) < $last - $first) AS grown
    FROM $part_times AS p WHERE $window GROUP BY pid, part
), most AS (
    SELECT pid, part, ROW_NUMBER() OVER (PARTITION BY pid ORDER BY grown DESC, part) AS place,
        grown / NULLIF(SUM(GREATEST(grown, 0.0)) OVER (PARTITION BY pid), 0) AS share
    FROM grown WHERE grown IS NOT NULL
)
SELECT s.rank, s.step AS x, s.cpu_time AS y, CASE WHEN m.part IS NULL THEN '' ELSE concat(', most of it in ', $part_in_words) END AS grows,
    CASE m.part WHEN 'backward' THEN 'detach() what is kept from step to step, such as a hidden state or a sum of losses: backward goes through the history of all steps before'
        ELSE 'find what grows with the steps and is gone through in each of them, such as a history that is kept: compare two flame graphs (probe flamegraph), early and late' END AS remedy
FROM python.steps s LEFT JOIN most m ON s.pid = m.pid AND m.place = 1 AND m.share >= 0.5
WHERE s.step BETWEEN $first AND $last AND s.cpu_time IS NOT NULL
    -- Larger inputs take more time, as they should.
    AND s.pid NOT IN $larger_inputs
