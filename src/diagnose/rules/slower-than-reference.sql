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
WITH r(pid, part, usual, waits) AS (
    VALUES $reference
), part AS (
    SELECT pid, rank, step, part, part_time AS cost, COALESCE(run_delay, 0) AS delay, duration FROM $part_times AS t WHERE $window
), more AS (
    SELECT part.step, part.rank, part.part, part.cost, r.usual, part.cost AS took,
        -- Work takes this many times as long if it waits for a processor for a larger share of the time. More work waits longer too.
        GREATEST((1 - r.waits) / GREATEST(1 - part.delay / GREATEST(duration, 1e-9), 0.02), 1) AS busier
    FROM part JOIN r ON part.pid = r.pid AND part.part = r.part
)
SELECT step, rank, part, cost, usual * busier AS ref, usual, took FROM more
