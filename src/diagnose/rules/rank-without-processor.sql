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
    SELECT *, GREATEST(duration - comm_time, 1e-9) AS own FROM python.steps WHERE $window AND rank IS NOT NULL AND run_delay IS NOT NULL AND cpu_time IS NOT NULL
), h AS (
    -- While a rank waits for others it may wait for a processor, too; what it computed it had one for.
    SELECT *, LEAST(GREATEST(1 - run_delay / own, cpu_time / own, 0.02), 1.0) AS had FROM s
), part AS (
    SELECT pid, rank, step, had, p.name AS part, CASE p.name WHEN 'data' THEN data_time WHEN 'forward' THEN forward_time
        WHEN 'backward' THEN backward_time WHEN 'optimizer' THEN optimizer_time ELSE other_time END AS cost
    FROM h CROSS JOIN (VALUES ('data'), ('forward'), ('backward'), ('optimizer'), ('other')) AS p(name)
), usual AS (
    SELECT pid, median(had) AS had FROM h GROUP BY pid
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
