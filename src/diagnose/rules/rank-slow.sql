-- rule: rank-slow
-- family: communication
-- kind: time
-- confidence: measured
-- persistence: 0.75
-- reduce: typical
-- line: sampled
-- explains: thread-blocked, work-between-parts, slower-than-reference
-- also: straggler, stragglers, slow rank, imbalance
-- says: {who} takes longer than the others for {part}, in nearly every step, and they wait for it
-- do: look at what that rank does in {part}: its data, its modules, its machine
WITH part AS (
    SELECT rank, step, samples, part, part_time AS cost,
        -- Share of its own time in which it had a processor: what it waited for one, others of its machine took.
        1 - LEAST(COALESCE(run_delay, 0) / GREATEST(duration - comm_time, 1e-9), 0.98) AS had
    FROM $part_times AS t WHERE $window AND rank IS NOT NULL AND part <> 'comm'
    -- Stages of a pipeline have different layers: uneven-stages compares them.
    AND (part IN ('data', 'other') OR pid NOT IN $pipelined)
)
SELECT a.step, a.rank, a.part, a.cost,
    -- What the others would take if they waited as much for a processor, and had as many samples; at least what they took.
    GREATEST(median(b.cost), median(b.cost * b.had) / a.had)
        * CASE WHEN a.part IN ('data', 'forward', 'backward') THEN GREATEST(COALESCE(a.samples / median(CAST(b.samples AS DOUBLE)), 1.0), 1.0) ELSE 1.0 END AS ref
FROM part a JOIN part b ON a.step = b.step AND a.part = b.part AND a.rank <> b.rank
GROUP BY a.step, a.rank, a.part, a.cost, a.had, a.samples
