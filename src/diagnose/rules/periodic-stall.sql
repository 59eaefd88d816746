-- rule: periodic-stall
-- family: host
-- kind: time
-- confidence: likely
-- reduce: periodic
-- line: sampled
-- also: stall, stalls, hiccups
-- says: {who}: every {every} steps, {part} takes {stall:ms} longer ({times} times)
-- do: find what the program does each {every} steps in {part}, and do it on another thread or less often
WITH part AS (
    SELECT pid, rank, step, p.name AS part, CASE p.name WHEN 'data' THEN data_time WHEN 'forward' THEN forward_time
        WHEN 'backward' THEN backward_time WHEN 'optimizer' THEN optimizer_time ELSE other_time END AS cost
    FROM python.steps CROSS JOIN (VALUES ('data'), ('forward'), ('backward'), ('optimizer'), ('other')) AS p(name)
    WHERE $window
), usual AS (
    SELECT pid, part, median(cost) AS ref FROM part GROUP BY pid, part
)
SELECT part.step, part.rank, part.part, part.cost, usual.ref
FROM part JOIN usual ON part.pid = usual.pid AND part.part = usual.part
