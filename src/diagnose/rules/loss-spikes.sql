-- rule: loss-spikes
-- family: numerics
-- kind: fact
-- confidence: measured
-- needs: python.metrics.name
-- also: spike, spikes, loss spike, outlier, bad batch, instability, gradient norm
-- says: {who}: {subject} jumps in {times} of {count} values, to {most} times its usual value at most, first in step {first}
-- do: look at the batch of step {first} (its indices, its labels); clip_grad_norm_, a longer warm-up or a lower learning rate, a smaller beta2 of Adam
-- record: probe_agent.log(loss=loss)
WITH m AS (
    SELECT pid, rank, name, step, value, ROW_NUMBER() OVER (PARTITION BY pid, name ORDER BY step) AS number FROM python.metrics
    WHERE pid IN ($pids) AND step <= $last AND value > 0 AND value < CAST('Infinity' AS DOUBLE) AND NOT isnan(value)
        AND regexp_like(lower(name), '^(torch\.|train[a-z]*[/_. ])?(loss|grad_norm|clip_grad_norm_)$')
), block AS (
    -- In the beginning a loss falls within a block.
    SELECT *, (CAST(number AS BIGINT) - 1) / 32 AS block FROM m WHERE number > 32
), usual AS (
    SELECT pid, name, block, median(value) AS usual FROM block GROUP BY pid, name, block
), ratio AS (
    SELECT b.pid, b.rank, b.name, b.step, b.value / u.usual AS ratio FROM block b JOIN usual u ON b.pid = u.pid AND b.name = u.name AND b.block = u.block
), varies AS (
    SELECT pid, name, approx_percentile_cont(ratio, 0.9) AS varies FROM ratio GROUP BY pid, name
), jumps AS (
    SELECT r.*, r.ratio >= GREATEST(3.0, 3.0 * v.varies) AS jumps FROM ratio r JOIN varies v ON r.pid = v.pid AND r.name = v.name
    -- Losses of single samples, of adversaries and of policies are many times their usual value all the time.
    WHERE v.varies <= 2
)
SELECT rank, name AS subject, CASE WHEN name LIKE 'torch.%' OR times < 3 THEN 'note' ELSE 'warn' END AS severity, times, count, most, first,
    CAST(NULL AS VARCHAR) AS undecided
FROM (SELECT pid, rank, name, SUM(CASE WHEN jumps THEN 1 ELSE 0 END) AS times, COUNT(*) AS count, COUNT(DISTINCT step) AS steps,
        MAX(ratio) AS most, MIN(CASE WHEN jumps THEN step END) AS first
    FROM jumps GROUP BY pid, rank, name)
-- One value in a step: which of several models it belongs to is not known.
WHERE times >= 1 AND times <= 0.05 * count AND count >= 64 AND count <= 1.02 * steps
UNION ALL
SELECT rank, name, CAST(NULL AS VARCHAR), NULL, NULL, NULL, NULL, COUNT(*) || ' values of ' || name || ' are too few: the rule needs 96'
FROM m GROUP BY pid, rank, name HAVING COUNT(*) < 96
