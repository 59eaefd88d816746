-- rule: host-leak
-- family: memory
-- kind: trend
-- confidence: measured
-- needs: python.memory.rss
-- least: 30
-- growth: 5
-- also: leak, memory leak, rss, out of memory, oom killer
-- says: {who}: memory grows all the time: {first} to {last} MB, {slope} MB a step{until}
-- do: find what is kept, such as losses with their graphs (keep loss.item()): probe eval "import gc, collections; print(collections.Counter(type(o).__name__ for o in gc.get_objects()).most_common(10))"
-- record: let it train for longer: it is measured ten times a second at most
WITH m AS (
    SELECT pid, rank, step, rss FROM python.memory WHERE $window AND device = 'cpu' AND step < $last AND rss IS NOT NULL
    -- Where inputs become larger, their activations do, too.
    AND pid NOT IN $larger_inputs
    -- A profiler keeps what it records until it is asked for that.
    AND pid NOT IN (SELECT pid FROM python.environment WHERE pid IN ($pids) AND torch_profiler)
), limited AS (
    -- What processes of the host hold together grows to the limit of their control group, or to the memory of the machine.
    SELECT pid, host, LEAST(COALESCE(memory_limit, machine_memory), COALESCE(machine_memory, memory_limit)) AS memory, COALESCE(memory_limit < machine_memory, memory_limit IS NOT NULL) AS is_group
    FROM $newest_environment AS e
), grows AS (
    SELECT g.pid, memory, is_group, SUM(GREATEST(slope, 0.0)) OVER w AS slope, SUM(used) OVER w AS used, AVG(seconds) OVER w AS seconds
    FROM (SELECT pid, regr_slope(rss, step) AS slope, MAX(rss) AS used FROM m GROUP BY pid) AS g JOIN limited ON g.pid = limited.pid
        JOIN (SELECT pid, AVG(duration) AS seconds FROM python.steps WHERE $window GROUP BY pid) AS s ON g.pid = s.pid
    WHERE memory IS NOT NULL WINDOW w AS (PARTITION BY limited.host, memory, is_group)
), rest AS (
    SELECT pid, memory, is_group, (memory - used) / slope AS steps, (memory - used) / slope * seconds AS seconds FROM grows WHERE slope > 0 AND memory > used
)
SELECT m.rank, m.step AS x, m.rss AS y, rest.steps AS steps_left,
    '; at that rate the ' || CAST(CAST(round(memory) AS BIGINT) AS VARCHAR) || CASE WHEN is_group THEN ' MB of its control group' ELSE ' MB of the machine' END
        || ' are full after ' || $time_left || ' if nobody else needs any' AS until,
    -- The allocator keeps what larger inputs needed.
    CASE WHEN varied.pid IS NOT NULL THEN 'inputs vary in size, for which memory grows for some hundred steps: the rule takes 900' END AS ruled_out
-- Nobody waits for a month.
FROM m LEFT JOIN rest ON m.pid = rest.pid AND rest.seconds < 2592000
    LEFT JOIN (SELECT pid FROM $input_size AS size GROUP BY pid HAVING MAX(size) >= 1.5 * MIN(size) AND MAX(step) - MIN(step) < 900) AS varied ON m.pid = varied.pid
