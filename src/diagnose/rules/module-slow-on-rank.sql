-- rule: module-slow-on-rank
-- family: communication
-- kind: time
-- confidence: measured
-- needs: python.torch_trace.duration
-- least: 20
-- gate: times >= 1.5
-- persistence: 0.9
-- reduce: typical
-- explains: rank-slow, odd-sibling, slower-than-reference
-- also: straggler, stragglers, slow rank, slow module, imbalance
-- says: {who} takes {took:ms} for module {module} in the {part} pass of a step, where the others take {others:ms}, in nearly every step, and they wait for it
-- do: look at what {module} does on that rank alone: code that only it runs (if rank == 0), a hook, its inputs
-- record: probe config detail=every-step
WITH t AS (
    SELECT pid, rank, step, COALESCE(module, '') AS module, COALESCE(module_type, '') AS module_type, stage, SUM(duration) AS own
    FROM python.torch_trace
    WHERE $window AND rank IS NOT NULL AND stage IN ('forward', 'backward') AND duration IS NOT NULL AND captured IS NOT TRUE
    GROUP BY pid, rank, step, module, module_type, stage
), usual AS (
    SELECT pid, rank, module, module_type, stage, median(own) AS own, approx_percentile_cont(own, 0.1) AS least, approx_percentile_cont(own, 0.75) AS often
    FROM t GROUP BY pid, rank, module, module_type, stage HAVING COUNT(*) >= 20
), sums AS (
    SELECT *, SUM(own) OVER (PARTITION BY pid) AS whole, SUM(own) OVER (PARTITION BY pid, stage) AS of_stage,
        SUM(own) OVER (PARTITION BY pid, module, module_type) AS of_module
    FROM usual
), inputs AS (
    SELECT pid, size / NULLIF((SUM(size) OVER () - size) / (COUNT(*) OVER () - 1), 0) AS larger FROM (
        SELECT pid, median(size) AS size FROM $input_size AS input GROUP BY pid
    ) AS sizes
), compared AS (
    SELECT a.pid, a.module, a.module_type, a.stage, a.own, a.least, a.of_stage, a.whole - a.of_module AS rest, median(b.own) AS others, median(b.often) AS often,
        median(b.of_stage) AS others_stage, median(b.whole - b.of_module) AS others_rest, median(b.whole) AS others_whole, COUNT(*) AS count
    FROM sums a JOIN sums b ON a.module = b.module AND a.module_type = b.module_type AND a.stage = b.stage AND a.rank <> b.rank
    -- In its own time, a wrapper waits for the buffers of other ranks.
    WHERE a.module <> '' AND a.module_type NOT IN ('DistributedDataParallel', 'FullyShardedDataParallel')
    GROUP BY a.pid, a.module, a.module_type, a.stage, a.own, a.least, a.of_stage, a.whole, a.of_module
), factored AS (
    -- A rank with a slower processor takes longer for all of its modules.
    SELECT c.*, GREATEST(c.rest / c.others_rest, 1.0) AS factor FROM compared c LEFT JOIN inputs ON c.pid = inputs.pid
    WHERE c.count = (SELECT COUNT(DISTINCT pid) - 1 FROM python.steps WHERE $window) AND c.others > 0 AND c.others_rest >= 0.2 * c.others_whole
        AND COALESCE(inputs.larger, 1.0) < 1.1
        -- Stages of a pipeline have different layers, and ranks of an all-to-all different experts.
        AND c.pid NOT IN $pipelined AND c.pid NOT IN (SELECT pid FROM python.nccl_trace WHERE $window AND operation_type LIKE 'all_to_all%')
), slow AS (
    SELECT *, others * factor AS ref FROM factored
    -- Communication takes the processor from whatever runs meanwhile, in some steps of each rank: the shortest times count.
    WHERE own >= 1.5 * others * factor AND least >= 1.25 * others * factor AND least >= often * factor AND own - others * factor >= 1e-4
        -- Where its part does not take longer, ranks wait within modules for what another one computes in this one (FSDP).
        AND of_stage - others_stage * factor >= 0.5 * (own - others * factor)
)
SELECT t.step, t.rank, t.module, t.stage AS part, t.own AS cost, slow.ref, t.own / slow.ref AS times, slow.own AS took, slow.others
FROM t JOIN slow ON t.pid = slow.pid AND t.module = slow.module AND t.module_type = slow.module_type AND t.stage = slow.stage
