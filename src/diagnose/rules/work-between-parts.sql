-- rule: work-between-parts
-- family: host
-- kind: time
-- part: other
-- confidence: likely
-- persistence: 0.9
-- reduce: typical
-- saving: ceiling
-- levels: 15, 25, 50
-- line: sampled
-- explains: slower-than-reference
-- also: logging, print
-- says: {who} does something else between the parts of nearly every step: more than the millisecond and the 15 % that loops take
-- do: move that work to another thread, or do it every n steps; probe flamegraph shows all its lines (of a live run)
SELECT step, rank, other_time AS cost,
       -- A millisecond of work takes longer while the thread waits for a processor, by as much as the step does.
       0.001 * duration / GREATEST(duration - COALESCE(run_delay, 0), 0.02 * duration)
           + 0.15 * (duration - other_time - COALESCE(checkpoint_time, 0)) AS ref
FROM python.steps WHERE $window
