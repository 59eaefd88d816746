-- rule: optimizer-bound
-- family: host
-- kind: fact
-- confidence: likely
-- needs: python.environment.trainable_parameters
-- also: optimizer, embedding, sparse gradients, small batches
-- says: {who}: the optimizer takes {share:%} of the steps ({took:ms} of {whole:ms}): in each, it reads and writes all {parameters} million parameters
-- do: for an embedding of which each batch uses few rows, sparse=True with SparseAdam or SGD updates only those rows; otherwise larger batches or gradient accumulation, so that there are fewer updates, and fused=True
-- record: agents note it when training begins
WITH e AS (
    SELECT * FROM $newest_environment
), s AS (
    SELECT pid, rank, SUM(optimizer_time) / SUM(duration) AS share, median(optimizer_time) AS took, median(duration) AS whole,
        -- What the other parts take where they are not disturbed is the least that they compute.
        median(cpu_time) AS computes, approx_percentile_cont(duration - optimizer_time, 0.1) AS others,
        COALESCE(SUM(run_delay), 0.0) / SUM(duration) AS waits
    FROM python.steps WHERE $window AND kind IS DISTINCT FROM 'call' GROUP BY pid, rank HAVING COUNT(*) >= 40
)
-- On a device the host hardly waits for the optimizer. A small model's takes no time that is worth anything.
SELECT s.rank, 'optimizer' AS seen, 'note' AS severity, s.share, s.took, s.whole, round(e.trainable_parameters / 1e6, 1) AS parameters
FROM s JOIN e ON s.pid = e.pid WHERE e.device = 'cpu' AND s.share >= 0.5 AND s.took >= 0.001 AND e.trainable_parameters >= 100000
    -- A thread that has a processor for a few milliseconds at a time waits for it in one part of its steps mostly.
    AND (s.waits < 0.5 OR COALESCE(1 - s.others / NULLIF(s.computes, 0.0), 1.0) >= 0.5)
