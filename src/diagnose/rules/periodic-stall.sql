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
), called AS (
    -- Trainings that take turns (the two of a GAN, several tasks) call other modules in some steps than in the rest.
    SELECT pid, step, modules, median(modules) OVER (PARTITION BY pid) AS usual FROM (
        SELECT pid, step, CAST(COUNT(DISTINCT module) AS DOUBLE) AS modules FROM python.torch_trace WHERE $window AND stage = 'forward' GROUP BY pid, step
    )
)
SELECT part.step, part.rank, part.part, part.cost,
    -- A step with more calls of the model, as of a policy that plays now and then, or with other modules, takes longer for them, and
    -- one with more calls for the loops around them: what the environments of a policy take for each is not known.
    CASE WHEN part.part IN ('forward', 'backward', 'optimizer') AND (part.micro_steps > usual.calls OR called.modules <> called.usual)
            OR part.part = 'other' AND part.micro_steps >= 8 * GREATEST(usual.calls, 1.0) THEN GREATEST(part.cost, usual.ref)
        WHEN part.part = 'other' THEN usual.ref + 0.00025 * GREATEST(part.micro_steps - usual.calls, 0.0) ELSE usual.ref END AS ref
FROM part JOIN usual ON part.pid = usual.pid AND part.part = usual.part LEFT JOIN called ON part.pid = called.pid AND part.step = called.step
