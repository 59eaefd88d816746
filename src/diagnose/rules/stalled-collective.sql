-- rule: stalled-collective
-- family: communication
-- kind: fact
-- confidence: measured
-- needs: python.nccl_trace.duration_ms
-- also: stall, timeout, straggler, collective
-- says: {times} of {count} {operation} took a second or more, a hundred times as long as usual, first in step {first}{late}
-- do: look at what that rank did before (probe NAME query "SELECT * FROM python.steps WHERE step = {first}"); NCCL's time-out ends the job where it takes longer
-- record: recorded where torch.distributed is used
WITH n AS (
    SELECT rank, step, seq, group_name, operation_type, duration_ms FROM python.nccl_trace WHERE $window AND duration_ms IS NOT NULL AND rank IS NOT NULL
), usual AS (
    SELECT operation_type, median(duration_ms) AS ms FROM n GROUP BY operation_type HAVING COUNT(*) >= 40
), long AS (
    -- Who comes last does not wait, so that its own is short.
    SELECT n.group_name, n.seq, n.operation_type, MIN(n.step) AS step, MAX(n.duration_ms) AS most, MIN(n.duration_ms) AS least, COUNT(*) AS ranks
    FROM n GROUP BY n.group_name, n.seq, n.operation_type
), counted AS (
    SELECT usual.operation_type, usual.ms, COUNT(*) AS count FROM usual JOIN long ON usual.operation_type = long.operation_type
    GROUP BY usual.operation_type, usual.ms
), bad AS (
    SELECT long.*, ROW_NUMBER() OVER (PARTITION BY long.operation_type ORDER BY long.seq) AS position, COUNT(*) OVER (PARTITION BY long.operation_type) AS times, usual.count
    FROM long JOIN counted AS usual ON long.operation_type = usual.operation_type WHERE long.most >= 1000 AND long.most >= 100 * usual.ms
), last AS (
    SELECT b.group_name, b.seq, MIN(n.rank) AS rank FROM bad b JOIN n ON n.group_name = b.group_name AND n.seq = b.seq AND n.duration_ms = b.least
    WHERE b.ranks > 1 AND b.least < 0.5 * b.most GROUP BY b.group_name, b.seq
)
SELECT last.rank, bad.operation_type AS operation, 'long' AS seen, 'note' AS severity, bad.times, bad.count, bad.step AS first,
    COALESCE(': rank ' || CAST(last.rank AS VARCHAR) || ' came last', '') AS late
FROM bad LEFT JOIN last ON bad.group_name = last.group_name AND bad.seq = last.seq WHERE bad.position = 1 AND bad.times * 20 <= bad.count
