-- rule: work-between-parts
-- family: host
-- kind: time
-- part: other
-- confidence: likely
-- persistence: 0.75
-- reduce: typical
-- saving: estimate
-- levels: 10, 20, 40
-- line: sampled
-- explains: slower-than-reference, python-between-parts
-- also: logging, print
-- says: {who} spends {took:ms} of a step outside of data, forward, backward and optimizer; up to a millisecond plus 15 % of a step is usual
-- do: move that work to another thread, or do it every n steps; probe flamegraph shows all its lines (of a live run)
SELECT step, rank, other_time AS took,
       -- A server that waits for requests does nothing else.
       CASE WHEN kind = 'call' THEN LEAST(other_time, COALESCE(cpu_time, other_time)) ELSE other_time END AS cost,
       $usual_other_time AS ref, $median_other_time AS expected
FROM python.steps WHERE $window
