-- rule: rank-without-processor
-- family: communication
-- kind: time
-- parts: together
-- confidence: measured
-- needs: python.steps.run_delay
-- persistence: 0.75
-- reduce: typical
-- explains: rank-slow, waits-for-a-processor, slower-than-reference
-- also: straggler, stragglers, slow rank, imbalance, affinity, taskset, pinning
-- says: {who} has a processor for {had:%} of its own time in a step and the other ranks for {others_had:%}: it takes longer, and they wait for it
-- do: look at what else runs on its processors (top, and taskset -p PID says which may be used), and for a limit of its control group; give each rank processors of its own
-- record: the kernel must count it (/proc/PID/schedstat)
WITH s AS (
    SELECT *, GREATEST(duration - comm_time, 1e-9) AS own FROM $part_times AS t
    WHERE $window AND rank IS NOT NULL AND run_delay IS NOT NULL AND cpu_time IS NOT NULL AND part <> 'comm'
), part AS (
    -- While a rank waits for others it may wait for a processor, too; what it computed it had one for.
    SELECT pid, rank, step, part, part_time AS cost, LEAST(GREATEST(1 - run_delay / own, cpu_time / own, 0.02), 1.0) AS had FROM s
), usual AS (
    SELECT pid, median(had) AS had FROM part GROUP BY pid
), less AS (
    SELECT a.pid, a.had, median(b.had) AS others_had FROM usual a JOIN usual b ON a.pid <> b.pid GROUP BY a.pid, a.had
    HAVING a.had < 0.8 * median(b.had)
)
SELECT a.step, a.rank, a.part, a.cost,
    -- What it would take with a processor for as much of its time as the others; at least what they took.
    GREATEST(LEAST(a.cost, median(b.cost)), a.cost * LEAST(a.had / median(b.had), 1.0)) AS ref,
    MAX(less.had) AS had, MAX(less.others_had) AS others_had
FROM part a JOIN less ON a.pid = less.pid JOIN part b ON a.step = b.step AND a.part = b.part AND a.rank <> b.rank
GROUP BY a.step, a.rank, a.part, a.cost, a.had
