-- rule: gradient-norms-differ
-- family: numerics
-- kind: fact
-- confidence: measured
-- needs: python.metrics.name
-- also: ranks diverge, replicas, desync, silent data corruption, sdc
-- says: the norm of the gradients differs between ranks in {share:%} of the steps, from step {first} on, although {wrapper} gives every rank the same gradients: the replicas do not train the same model
-- do: compare a checksum of the parameters on every rank (probe eval "sum(p.double().sum().item() for p in model.parameters())"): a parameter that is not reduced, code that runs on one rank only, or a GPU that computes wrongly
-- record: it is recorded where torch.nn.utils.clip_grad_norm_ is called on the host, or its result is logged
WITH e AS (
    SELECT * FROM $newest_environment
), d AS (
    SELECT pid, wrapper FROM e WHERE (wrapper LIKE '%DistributedDataParallel%' OR wrapper LIKE '%FullyShardedDataParallel%')
), m AS (
    -- Of several models in a step it is not known which norm is whose.
    SELECT pid, step, MAX(value) AS norm FROM python.metrics WHERE $window AND name = 'torch.clip_grad_norm_' AND value IS NOT NULL AND NOT isnan(value)
        AND abs(value) < CAST('Infinity' AS DOUBLE) AND pid IN (SELECT pid FROM d) GROUP BY pid, step HAVING COUNT(*) = 1
), s AS (
    SELECT step, CASE WHEN MAX(norm) > 1.01 * MIN(norm) THEN 1.0 ELSE 0.0 END AS differs FROM m GROUP BY step HAVING COUNT(*) = (SELECT COUNT(*) FROM d) AND COUNT(*) > 1
)
SELECT CAST(NULL AS INT) AS rank, 'norms' AS seen, 'warn' AS severity, AVG(differs) AS share, MIN(CASE WHEN differs > 0 THEN step END) AS first,
    (SELECT MAX(wrapper) FROM d) AS wrapper
FROM s HAVING COUNT(*) >= 8 AND AVG(differs) >= 0.5
