-- python.rank_balance: One row per process of a run of several ranks: how long it was busy in a step, how that differs from the other ranks, and how often it was the last one. Covers the steps that all ranks of its generation have finished and in which none of them was captured, as far as python.step_offsets knows which of their steps are the same.
-- example: SELECT rank, host, steps, busy, waited, lead, last, last_share, imbalance FROM python.rank_balance ORDER BY last DESC
WITH each AS (
    SELECT o.run AS run, o.host AS host, o.pid AS pid, o.rank AS rank, generation, ranks, known_by, s.step + step_offset AS step,
        duration - comm_time AS busy, comm_time AS waited, captured
    FROM python.step_offsets o JOIN python.steps s ON o.run = s.run AND o.host = s.host AND o.pid = s.pid AND o.rank = s.rank
), together AS (
    SELECT run, generation, step, MAX(busy) AS slowest, AVG(busy) AS mean
    FROM each WHERE step IS NOT NULL
    GROUP BY run, generation, step, ranks HAVING COUNT(DISTINCT rank) = ranks AND COUNT(*) FILTER (WHERE captured) = 0 AND ranks > 1
)
SELECT
    each.run AS run,                                                       -- text: The run.
    host,                                                                  -- text: Host name of the machine.
    pid,                                                                   -- int: Process id on that host.
    rank,                                                                  -- int: Global rank.
    COUNT(mean) AS steps,                                                  -- bigint: Steps that are compared; 0 where it is not known which of its steps are those of the other ranks.
    approx_percentile_cont(CASE WHEN mean IS NOT NULL THEN busy END, 0.5) AS busy, -- double, s: Median of a step's duration without comm_time: the rank's own work.
    approx_percentile_cont(CASE WHEN mean IS NOT NULL THEN waited END, 0.5) AS waited, -- double, s: Median of comm_time: waiting for other ranks.
    100 * approx_percentile_cont((busy - mean) / NULLIF(mean, 0), 0.5) AS lead, -- double, %: Median of (busy - mean over the ranks) / mean: above 0 it is slower than the others.
    SUM(CASE WHEN busy = slowest THEN 1 WHEN mean IS NOT NULL THEN 0 END) AS last, -- bigint: Steps in which no rank was busy for longer.
    100.0 * SUM(CASE WHEN busy = slowest THEN 1 WHEN mean IS NOT NULL THEN 0 END) / NULLIF(COUNT(mean), 0) AS last_share, -- double, %: last, as a share of all steps compared; about 100 / ranks when it is chance.
    100 * approx_percentile_cont((slowest - mean) / NULLIF(mean, 0), 0.5) AS imbalance, -- double, %: Median over steps of (max - mean) / mean of the ranks' busy time: what a perfect balance would save. It is of the generation, not of this rank.
    known_by                                                               -- text: How it is known which of its steps are those of the other ranks, as in python.step_offsets. NULL where it is not known: the rank is not compared then, and is in no mean.
FROM each LEFT JOIN together ON each.run = together.run AND each.generation = together.generation AND each.step = together.step
WHERE (SELECT COUNT(DISTINCT rank) FROM python.steps) > 1
GROUP BY each.run, host, pid, rank, known_by
