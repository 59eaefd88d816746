-- rule: uneven-stages
-- family: communication
-- kind: time
-- parts: together
-- confidence: measured
-- needs: python.nccl_trace.operation_type
-- persistence: 0.75
-- reduce: typical
-- explains: rank-slow, slower-than-reference
-- also: pipeline, pipeline parallel, pipeline imbalance, stage imbalance, uneven stages, stages, imbalance
-- says: {who} has the slowest stage of the pipeline: its forward and backward passes compute for {own:ms} in a step, those of an average stage for {mean:ms}, and all wait for it
-- do: move layers from it to the other stages (split_spec, or where the model is cut by hand); an embedding, a head and the loss count too
-- record: recorded where torch.distributed is used
WITH own AS (
    -- Without the time in which it had no processor.
    SELECT pid, rank, median((forward_time + backward_time) * (1 - LEAST(COALESCE(run_delay, 0) / GREATEST(duration - comm_time, 1e-9), 0.98))) AS own
    FROM python.steps WHERE $window AND rank IS NOT NULL AND pid IN $pipelined GROUP BY pid, rank
), whole AS (
    SELECT AVG(own) AS mean, MAX(own) AS most FROM own HAVING COUNT(*) > 1
), slowest AS (
    SELECT own.pid, own.own, whole.mean FROM own CROSS JOIN whole WHERE own.own = whole.most AND own.own >= 1.2 * whole.mean
)
SELECT p.step, p.rank, p.part, p.part_time AS cost, p.part_time * s.mean / s.own AS ref, s.own, s.mean
FROM $part_times AS p JOIN slowest s ON p.pid = s.pid
WHERE p.step BETWEEN $first AND $last AND p.part IN ('forward', 'backward')
