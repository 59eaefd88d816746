-- python.rank_balance: One row per rank: how long it was busy in a step, how that differs from the others, and how often it was the last one. Covers the steps that all known ranks have finished.
-- example: SELECT rank, host, steps, busy, waited, lead, last, last_share, imbalance FROM python.rank_balance ORDER BY last DESC
WITH each AS (
    SELECT run, host, pid, rank, step, duration - comm_time AS busy, comm_time AS waited FROM python.steps
), world AS (
    SELECT run, COUNT(DISTINCT rank) AS ranks FROM each GROUP BY run
), together AS (
    SELECT each.run AS run, step, MAX(busy) AS slowest, AVG(busy) AS mean
    FROM each JOIN world ON each.run = world.run
    GROUP BY each.run, step, ranks HAVING COUNT(DISTINCT rank) = ranks AND ranks > 1
)
SELECT
    each.run AS run,                                                       -- text: The run.
    host,                                                                  -- text: Host name of the machine.
    rank,                                                                  -- int: Global rank.
    COUNT(*) AS steps,                                                     -- bigint: Steps that are compared.
    approx_percentile_cont(busy, 0.5) AS busy,                             -- double, s: Median of a step's duration without comm_time: the rank's own work.
    approx_percentile_cont(waited, 0.5) AS waited,                         -- double, s: Median of comm_time: waiting for other ranks.
    100 * approx_percentile_cont((busy - mean) / NULLIF(mean, 0), 0.5) AS lead, -- double, %: Median of (busy - mean over the ranks) / mean: above 0 it is slower than the others.
    SUM(CASE WHEN busy = slowest THEN 1 ELSE 0 END) AS last,               -- bigint: Steps in which no rank was busy for longer.
    100.0 * SUM(CASE WHEN busy = slowest THEN 1 ELSE 0 END) / COUNT(*) AS last_share, -- double, %: last, as a share of all steps compared; about 100 / ranks when it is chance.
    100 * approx_percentile_cont((slowest - mean) / NULLIF(mean, 0), 0.5) AS imbalance -- double, %: Median over steps of (max - mean) / mean of the ranks' busy time: what a perfect balance would save. It is of the run, not of this rank.
FROM each JOIN together ON each.run = together.run AND each.step = together.step
GROUP BY each.run, host, pid, rank
