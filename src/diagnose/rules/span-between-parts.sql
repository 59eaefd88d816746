-- rule: span-between-parts
-- family: host
-- kind: time
-- part: other
-- confidence: measured
-- needs: python.spans.duration
-- persistence: 0.75
-- reduce: typical
-- saving: estimate
-- levels: 10, 20, 40
-- explains: work-between-parts, slower-than-reference
-- also: span, spans, record_function, nvtx
-- says: {who} spends {took:ms} of a step in the range '{subject}' of the program, outside of data, forward, backward and optimizer
-- do: move what '{subject}' does to another thread, or do it every n steps
-- record: with probe_agent.span("NAME"): around what the loop does beside training
WITH outermost AS (
    -- Of the threads that train.
    SELECT pid, step, name, CAST(ts AS BIGINT) AS since, CAST(ts AS BIGINT) + CAST(1e9 * duration AS BIGINT) AS until, duration
    FROM python.spans WHERE $window AND depth = 0 AND EXISTS (
        SELECT 1 FROM python.torch_trace AS t WHERE t.pid = spans.pid AND t.thread = spans.thread AND t.step BETWEEN $first AND $last AND t.stage = 'forward'
    )
), within AS (
    -- The other parts of a step, known in steps with detail. A range with one of them in it, or around it, is of that part.
    SELECT pid, step, CAST(ts AS BIGINT) AS begins, CAST(ts AS BIGINT) + CAST(1e9 * COALESCE(total_duration, 0.0) AS BIGINT) AS ends FROM python.torch_trace WHERE $window AND depth = 0
    UNION ALL SELECT pid, step, CAST(ts AS BIGINT), CAST(ts AS BIGINT) FROM python.data_trace WHERE $window
    UNION ALL SELECT pid, step, CAST(ts AS BIGINT), CAST(ts AS BIGINT) FROM python.nccl_trace WHERE $window
    UNION ALL SELECT pid, step, CAST(ts AS BIGINT), CAST(ts AS BIGINT) FROM python.checkpoints WHERE $window
), mixed AS (
    SELECT DISTINCT o.pid, o.name FROM outermost o JOIN within w ON o.pid = w.pid AND o.step = w.step WHERE w.begins <= o.until AND w.ends >= o.since
), taken AS (
    SELECT o.pid, o.step, o.name, SUM(o.duration) AS seconds, COUNT(*) OVER (PARTITION BY o.pid, o.name) AS steps
    FROM outermost o LEFT JOIN mixed ON o.pid = mixed.pid AND o.name = mixed.name
    WHERE mixed.pid IS NULL GROUP BY o.pid, o.step, o.name
)
SELECT step, rank, subject, took, cost,
    -- What stands out is what work-between-parts says of the whole part; of that, as much as the range takes.
    cost - LEAST(cost, GREATEST(other_time - $usual_other_time, 0.0)) AS ref,
    cost - LEAST(cost, GREATEST(other_time - $median_other_time, 0.0)) AS expected
FROM (
    SELECT s.*, t.name AS subject, t.seconds AS took, LEAST(t.seconds, s.other_time) AS cost
    FROM python.steps s JOIN taken t ON t.pid = s.pid AND t.step = s.step
    -- What comes now and then is no part of each step.
    WHERE s.step BETWEEN $first AND $last AND s.kind IS DISTINCT FROM 'call' AND t.steps >= 0.75 * ($last - $first + 1)
)
