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
-- says: {who} runs the backward pass of {modules} modules {times} times for each call of them
-- do: if each of several losses has its own backward() (retain_graph=True), add the losses and call backward() once: the gradients are the same; gradients of gradients (create_graph=True) and losses with their own optimizers need several passes
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
