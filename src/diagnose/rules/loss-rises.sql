-- rule: loss-rises
-- family: numerics
-- kind: fact
-- confidence: likely
-- needs: python.metrics.name
-- also: diverging, diverges, divergence, loss, exploding, instability
-- says: {who}: {subject} rises: it was {least} at its lowest (around step {at}), {began} in the beginning, and is {last} now
-- do: a lower learning rate or a longer warm-up, clip_grad_norm_, a look at the batches since step {at}; go back to a checkpoint of that time
-- record: probe_agent.log(loss=loss)
WITH m AS (
    SELECT pid, rank, name, step, value, NTILE(12) OVER (PARTITION BY pid, name ORDER BY step) AS block,
        FIRST_VALUE(value) OVER (PARTITION BY pid, name ORDER BY step) AS first FROM python.metrics
    WHERE pid IN ($pids) AND step <= $last AND value > 0 AND value < CAST('Infinity' AS DOUBLE) AND NOT isnan(value)
        AND regexp_like(lower(name), '^(torch\.|train[a-z]*[/_. ])?loss$')
), b AS (
    SELECT pid, rank, name, block, median(value) AS value, MIN(step) AS step, COUNT(*) AS count, COUNT(DISTINCT step) AS steps, MIN(first) AS first
    FROM m GROUP BY pid, rank, name, block
), w AS (
    SELECT pid, rank, name, MIN(value) AS least, SUM(count) AS count, SUM(steps) AS steps,
        MAX(CASE WHEN block = 1 THEN value END) AS began, MAX(CASE WHEN block = 12 THEN value END) AS last,
        MIN(CASE WHEN block BETWEEN 10 AND 12 THEN value END) AS lately, MAX(CASE WHEN block = 10 THEN value END) AS before,
        MIN(first) AS first, MIN(CASE WHEN block > 1 THEN value END) >= 5 * MIN(first) AS at_once
    FROM b GROUP BY pid, rank, name
)
-- A loss may rise for a while, and those of adversaries and policies do; a warning is worth one that is worse than in the beginning.
SELECT w.rank, w.name AS subject, CASE WHEN w.name <> 'torch.loss' AND NOT w.at_once AND w.last >= 1.5 * w.began AND w.last >= 3 * w.least THEN 'warn' ELSE 'note' END AS severity,
    CASE WHEN w.at_once THEN w.first ELSE w.least END AS least, w.last, CASE WHEN w.at_once THEN w.first ELSE w.began END AS began, MIN(b.step) AS at,
    CAST(NULL AS VARCHAR) AS undecided
-- With a learning rate that is far too high the loss rises in the first few steps, which the median of a block does not show.
FROM w JOIN b ON w.pid = b.pid AND w.name = b.name AND CASE WHEN w.at_once THEN b.block = 1 ELSE b.value = w.least END
-- One loss in a step: which of several models a value belongs to is not known.
WHERE w.count >= 96 AND w.count <= 1.02 * w.steps AND (w.at_once OR w.lately >= 1.5 * w.least AND w.last >= w.before)
GROUP BY w.pid, w.rank, w.name, w.least, w.last, w.began, w.first, w.at_once
UNION ALL
SELECT rank, name, CAST(NULL AS VARCHAR), NULL, NULL, NULL, NULL, count || ' values of ' || name || ' are too few: the rule needs 96'
FROM w WHERE count < 96
