-- rule: odd-sibling
-- family: device
-- kind: time
-- confidence: likely
-- needs: python.torch_trace.total_duration
-- least: 20
-- persistence: 0.9
-- gate: times >= 1.5
-- reduce: typical
-- explains: slower-than-reference
-- also: slow module
-- says: module {module} takes {times} times as long in {part} as its {siblings} siblings, which are all alike
-- do: look at what {module} does that they do not
-- record: probe config detail=every-step
WITH t AS (
    SELECT rank, pid, step, module, stage, regexp_replace(module, '[0-9]+$', '*') AS family, module_type,
        SUM(total_duration) AS cost, COUNT(*) AS calls
    FROM python.torch_trace
    WHERE $window AND stage IN ('forward', 'backward') AND module_type NOT IN
        ('Linear', 'Conv1d', 'Conv2d', 'Conv3d', 'Sequential', 'Embedding', 'LayerNorm', 'BatchNorm2d', 'ReLU', 'GELU', 'Dropout')
        AND right(module, 1) BETWEEN '0' AND '9'
    GROUP BY rank, pid, step, module, stage, module_type
), usual AS (
    SELECT pid, family, module_type, stage, module, median(cost) AS cost, SUM(calls) AS calls FROM t GROUP BY pid, family, module_type, stage, module
), others AS (
    SELECT a.pid, a.module, a.stage, median(b.cost) AS ref, MAX(b.cost) AS most, MIN(b.cost) AS least, COUNT(*) AS siblings
    -- Experts that get few of the tokens are not called as often.
    FROM usual a JOIN usual b ON a.pid = b.pid AND a.family = b.family AND a.module_type = b.module_type
        AND a.stage = b.stage AND a.module <> b.module
    GROUP BY a.pid, a.module, a.stage
    HAVING COUNT(*) >= 3 AND MAX(b.cost) <= 1.5 * MIN(b.cost) AND MAX(a.calls) <= 1.1 * MIN(b.calls)
), more AS (
    SELECT o.pid, o.module, o.stage, u.cost / o.ref AS times FROM others o
    JOIN usual u ON o.pid = u.pid AND o.module = u.module AND o.stage = u.stage
), larger AS (
    -- A little more of everything, forward and backward: a layer with more channels, or of a higher resolution. Of one without a
    -- backward pass it can't be told.
    SELECT f.pid, f.module FROM more f LEFT JOIN more b ON f.pid = b.pid AND f.module = b.module AND b.stage = 'backward'
    WHERE f.stage = 'forward' AND GREATEST(f.times, COALESCE(b.times, 0)) < 3
        AND GREATEST(f.times, COALESCE(b.times, f.times)) < 2 * LEAST(f.times, COALESCE(b.times, f.times))
)
SELECT t.step, t.rank, t.module, t.stage AS part, t.cost, o.ref, t.cost / o.ref AS times, o.siblings
FROM t JOIN others o ON t.pid = o.pid AND t.module = o.module AND t.stage = o.stage
WHERE NOT EXISTS (SELECT 1 FROM larger WHERE larger.pid = t.pid AND larger.module = t.module)
