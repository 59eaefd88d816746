-- rule: slower-since
-- family: regression
-- kind: time
-- confidence: likely
-- reduce: each
-- levels: 5, 10, 20
-- line: sampled
-- also: regression, slower, slowdown, change point
-- says: {who}: since step {since} {part} takes {after:ms} instead of {before:ms}
-- do: look at what changed then: probe compare of both windows, probe.events and python.environment around that step
-- record: at least 144 steps after the warm-up
WITH s AS (
    SELECT pid, rank, step, micro_steps, part, run_delay, duration, NTILE(12) OVER (PARTITION BY pid, part ORDER BY step) AS block, part_time AS cost
    FROM $part_times AS t WHERE $window AND part <> 'comm' AND kind IS DISTINCT FROM 'call'
), b AS (
    SELECT pid, part, block, MIN(step) AS step, median(cost) AS cost, median(duration) AS duration, AVG(COALESCE(run_delay, 0)) AS delay,
        median(micro_steps) AS calls, COUNT(*) AS count
    FROM s GROUP BY pid, part, block
), split AS (
    -- Every block before the change is faster than every block after it.
    SELECT pid, part, step AS since, block, MAX(cost) OVER (PARTITION BY pid, part ORDER BY block ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS most
    FROM b
), held AS (
    SELECT split.pid, split.part, split.since, split.block, split.most, MIN(b.cost) AS least, median(b.cost) AS after, median(b.duration) AS duration, AVG(b.delay) AS delay,
        median(b.calls) AS calls
    FROM split JOIN b ON split.pid = b.pid AND split.part = b.part AND b.block >= split.block
    WHERE split.block BETWEEN 4 AND 10 GROUP BY split.pid, split.part, split.since, split.block, split.most
), before AS (
    SELECT held.pid, held.part, held.since, held.after, held.least, held.most, median(b.cost) AS before,
        ROW_NUMBER() OVER (PARTITION BY held.pid, held.part ORDER BY held.least - held.most DESC) AS position
    FROM held JOIN b ON held.pid = b.pid AND held.part = b.part AND b.block < held.block
    GROUP BY held.pid, held.part, held.since, held.after, held.least, held.most, held.duration, held.delay, held.calls
    -- Not by neighbours that have the processors since then, nor by more calls of the model; and a jump, which a drift is not.
    HAVING held.delay / held.duration - AVG(b.delay) / median(b.duration) <= 0.05 AND held.calls = median(b.calls) AND held.least - held.most >= 0.4 * (held.after - median(b.cost))
        AND held.least - held.most >= 0.03 * held.duration AND MIN(b.count) >= 12
        -- Nor by a machine that is slower since then: the other parts take hardly longer.
        AND held.after / median(b.cost) - 1 >= 2 * ((held.duration - held.after) / NULLIF(median(b.duration) - median(b.cost), 0) - 1)
)
SELECT s.step, s.rank, s.part, CASE WHEN s.step >= before.since THEN s.cost ELSE before.before END AS cost, before.before AS ref, before.since, before.before, before.after
FROM s JOIN before ON s.pid = before.pid AND s.part = before.part AND before.position = 1
    LEFT JOIN (
        SELECT pid, step, CAST(COUNT(DISTINCT concat(stage, module)) AS DOUBLE) AS modules FROM python.torch_trace
        WHERE $window AND stage IN ('forward', 'backward') GROUP BY pid, step
    ) AS called ON s.pid = called.pid AND s.step = called.step
WHERE s.pid NOT IN $larger_inputs
-- Where other modules are called, or train, since then (layers that were frozen), the model does something else.
QUALIFY s.part NOT IN ('forward', 'backward', 'optimizer')
    OR COALESCE(median(CASE WHEN s.step < before.since THEN called.modules END) OVER (PARTITION BY s.pid, s.part)
        = median(CASE WHEN s.step >= before.since THEN called.modules END) OVER (PARTITION BY s.pid, s.part), true)
