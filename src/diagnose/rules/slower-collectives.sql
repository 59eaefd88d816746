-- rule: slower-collectives
-- family: communication
-- kind: fact
-- confidence: likely
-- needs: python.nccl_trace.duration_ms >= 144
-- also: bandwidth, network, slow link, slow network, regression, slower
-- says: {operation} of {size} MB takes {after} ms since step {since} and took {before} ms before, also on the rank that comes last and waits for no other: that costs its group {share:%} of a step{steps}
-- do: look at the link and its card (ethtool -S, ibstat, nvidia-smi nvlink --errorcounters), and at what else uses the network since then; NCCL_DEBUG=INFO says which one NCCL took
-- record: recorded of operations of NCCL that are not asynchronous (DDP's are), where all ranks are recorded
WITH n AS (
    -- Who comes last waits for no other rank: the shortest time of an operation is that of the transfer. Transfers of gloo are
    -- computed by the host, whose processors others may take.
    SELECT operation_type, bytes, group_name, seq, MIN(step) AS step, MIN(duration_ms) AS ms
    FROM python.nccl_trace
    WHERE $window AND rank IS NOT NULL AND backend <> 'gloo' AND bytes > 0 AND group_size > 1 AND operation_type NOT IN ('send', 'recv', 'barrier')
    GROUP BY operation_type, bytes, group_name, group_size, seq
    HAVING COUNT(duration_ms) = group_size AND COUNT(DISTINCT rank) = group_size
), s AS (
    SELECT *, NTILE(12) OVER (PARTITION BY operation_type, bytes, group_name ORDER BY seq) AS block,
        CAST(COUNT(*) OVER (PARTITION BY operation_type, bytes, group_name) AS DOUBLE) / ($last - $first + 1) AS calls
    FROM n
), b AS (
    SELECT operation_type, bytes, group_name, block, MIN(step) AS step, median(ms) AS ms, MAX(calls) AS calls, COUNT(*) AS count
    FROM s GROUP BY operation_type, bytes, group_name, block
), split AS (
    -- Every block before the change is faster than every block after it.
    SELECT z.operation_type, z.bytes, z.group_name, z.step AS since, z.calls, MAX(a.ms) AS most, median(a.ms) AS before, MIN(a.count) AS count, z.block
    FROM b a JOIN b z ON a.operation_type = z.operation_type AND a.bytes = z.bytes AND a.group_name = z.group_name AND a.block < z.block
    WHERE z.block BETWEEN 4 AND 10 GROUP BY z.operation_type, z.bytes, z.group_name, z.step, z.calls, z.block
), held AS (
    SELECT split.operation_type, split.bytes, split.group_name, split.since, split.calls, split.before, median(b.ms) AS after,
        ROW_NUMBER() OVER (PARTITION BY split.operation_type, split.bytes, split.group_name ORDER BY MIN(b.ms) - split.most DESC) AS position
    FROM split JOIN b ON split.operation_type = b.operation_type AND split.bytes = b.bytes AND split.group_name = b.group_name AND b.block >= split.block
    GROUP BY split.operation_type, split.bytes, split.group_name, split.since, split.calls, split.before, split.most, split.count
    -- A jump by a third at least, which a drift is not.
    HAVING split.count >= 12 AND median(b.ms) >= 1.33 * split.before AND MIN(b.ms) - split.most >= 0.5 * (median(b.ms) - split.before)
), ranked AS (
    SELECT *, (after - before) * calls / 1e3 AS extra, SUM((after - before) * calls / 1e3) OVER (PARTITION BY group_name) AS seconds,
        ROW_NUMBER() OVER (ORDER BY (after - before) * calls DESC, bytes, group_name) AS place
    FROM held WHERE position = 1
), worst AS (
    SELECT * FROM ranked WHERE place = 1
), whole AS (
    SELECT median(s.duration) FILTER (WHERE s.step >= worst.since) AS after, median(s.duration) FILTER (WHERE s.step < worst.since) AS before
    FROM python.steps s CROSS JOIN worst WHERE $window
)
SELECT CAST(NULL AS INT) AS rank, worst.operation_type AS operation, 'slower' AS seen, worst.bytes / 1e6 AS size, worst.since, worst.before, worst.after,
    worst.seconds / whole.after AS share,
    CASE WHEN whole.after - whole.before >= 0.5 * worst.seconds THEN ', and steps take ' || CAST(round(1e3 * (whole.after - whole.before), 1) AS VARCHAR) || ' ms longer since then'
        ELSE ', which may be hidden behind what is computed' END AS steps,
    CASE WHEN worst.seconds >= 0.1 * whole.after AND whole.after - whole.before >= 0.5 * worst.seconds THEN 'warn' ELSE 'note' END AS severity
FROM worst CROSS JOIN whole WHERE worst.seconds >= 0.02 * whole.after
