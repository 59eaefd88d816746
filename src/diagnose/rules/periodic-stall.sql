-- rule: periodic-stall
-- family: host
-- kind: time
-- confidence: likely
-- reduce: periodic
-- line: sampled
-- explains: irregular-stall
-- also: stall, stalls, hiccups
-- says: {who}: every {every} steps, {part} takes {stall:ms} longer ({times} times)
-- do: find what the program does each {every} steps in {part}, and do it on another thread or less often
WITH part AS (
    SELECT pid, rank, step, micro_steps, part, part_time AS cost FROM $part_times AS t WHERE $window AND part <> 'comm'
), usual AS (
    SELECT pid, part, median(cost) AS ref, median(micro_steps) AS calls FROM part GROUP BY pid, part
)
SELECT part.step, part.rank, part.part, part.cost,
    -- A step with more calls of the model, as of a policy that plays now and then, takes longer for them and for the loops around them.
    CASE WHEN part.part IN ('forward', 'backward') THEN usual.ref * GREATEST(part.micro_steps / GREATEST(usual.calls, 1.0), 1.0)
        WHEN part.part = 'other' THEN usual.ref + 0.00025 * GREATEST(part.micro_steps - usual.calls, 0.0) ELSE usual.ref END AS ref
FROM part JOIN usual ON part.pid = usual.pid AND part.part = usual.part
