-- rule: slower-than-reference
-- family: regression
-- kind: time
-- confidence: measured
-- persistence: 0.9
-- reduce: typical
-- levels: 5, 15, 30
-- also: regression, slower
-- says: {who}: {part} takes longer than in the reference: {took:ms}, {usual:ms} there
-- do: probe compare says which modules; conditions that changed are listed at the top
-- record: --against RUN names a reference
WITH r(pid, part, usual, delay) AS (
    VALUES $reference
), part AS (
    SELECT pid, rank, step, part, part_time AS cost, COALESCE(run_delay, 0) AS delay, duration FROM $part_times AS t WHERE $window
), more AS (
    SELECT part.step, part.rank, part.part, part.cost, r.usual, part.cost AS took,
        CASE WHEN duration > 0 THEN LEAST(GREATEST(part.delay - r.delay, 0) / duration, 1) ELSE 0 END AS busier
    FROM part JOIN r ON part.pid = r.pid AND part.part = r.part
)
SELECT step, rank, part, cost, usual + cost * busier AS ref, usual, took FROM more
