-- rule: work-between-parts
-- family: host
-- kind: time
-- part: other
-- confidence: likely
-- persistence: 0.9
-- reduce: typical
-- saving: ceiling
-- levels: 15, 25, 50
-- explains: slower-than-reference
-- also: logging, print
-- says: {who} does something else between the parts of nearly every step: more than the millisecond and the 15 % that loops take
-- do: probe flamegraph shows the lines (of a live run); move that work to another thread, or do it every n steps
-- A thread that waits for a processor needs more than a millisecond for a millisecond of work: the millisecond grows as the step did.
SELECT step, rank, other_time AS cost,
       0.001 * duration / GREATEST(duration - COALESCE(run_delay, 0), 0.02 * duration)
           + 0.15 * (duration - other_time - COALESCE(checkpoint_time, 0)) AS ref
FROM python.steps WHERE $window
