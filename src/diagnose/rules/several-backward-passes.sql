-- rule: several-backward-passes
-- family: device
-- kind: time
-- part: backward
-- confidence: likely
-- needs: python.torch_trace.duration
-- least: 20
-- levels: 5, 101, 101
-- saving: estimate
-- reduce: typical
-- line: sampled
-- also: retain_graph, losses, backward passes, double backward
-- says: {who} goes backward through {modules} modules {times} times for each time that they are called
-- do: where that is one backward() for each of several losses (retain_graph=True), add the losses and call backward() once: the gradients are the same; where gradients of gradients are wanted (create_graph=True), or each loss has an optimizer of its own, it has to be so
-- record: probe config detail=every-step
WITH calls AS (
    SELECT pid, rank, step, module, SUM(CASE stage WHEN 'forward' THEN 1 ELSE 0 END) AS forward,
        SUM(CASE stage WHEN 'backward' THEN 1 ELSE 0 END) AS backward, SUM(CASE stage WHEN 'backward' THEN duration ELSE 0.0 END) AS took
    FROM python.torch_trace WHERE $window AND stage IN ('forward', 'backward') AND module IS NOT NULL GROUP BY pid, rank, step, module
), again AS (
    SELECT pid, rank, step, SUM(took) AS cost, SUM(took * (backward - forward) / backward) AS more, COUNT(*) AS modules,
        CAST(SUM(backward) AS DOUBLE) / SUM(forward) AS times
    FROM calls WHERE forward > 0 AND backward > forward GROUP BY pid, rank, step
)
SELECT step, rank, cost, cost - more AS ref, round(median(modules) OVER pp) AS modules, round(median(times) OVER pp, 1) AS times
FROM again WINDOW pp AS (PARTITION BY pid)
