-- rule: device-leak
-- family: memory
-- kind: trend
-- confidence: measured
-- needs: python.memory.allocated
-- least: 48
-- growth: 2
-- also: leak, memory leak, cuda out of memory, oom, gpu memory
-- says: {who}: what tensors hold on the GPU grows all the time: {first} to {last} MB, {slope} MB a step{until}
-- do: find what is kept from one step to the next, such as losses or outputs that are not copied (a detached slice still holds the whole tensor: .clone(), or loss.item()): probe capture --memory says by which lines blocks were allocated
-- record: it is recorded where training is on a GPU
WITH m AS (
    SELECT host, pid, rank, step, SUM(allocated) AS allocated, COUNT(*) AS devices FROM python.memory WHERE $window AND device <> 'cpu' AND allocated IS NOT NULL
    -- Where inputs become larger, what is kept of them does, too.
    AND pid NOT IN $larger_inputs
    GROUP BY host, pid, rank, step
), rest AS (
    -- Which of several devices is full first is not known.
    SELECT g.pid, total.memory, (total.memory - g.used) / g.slope AS steps, (total.memory - g.used) / g.slope * s.seconds AS seconds
    FROM (SELECT host, pid, regr_slope(allocated, step) AS slope, MAX(allocated) AS used FROM m GROUP BY host, pid HAVING MAX(devices) = 1) AS g
        JOIN $gpu_memory AS total ON g.host = total.host
        JOIN (SELECT pid, AVG(duration) AS seconds FROM python.steps WHERE $window GROUP BY pid) AS s ON g.pid = s.pid
    WHERE g.slope > 0 AND total.memory > g.used
)
SELECT m.rank, m.step AS x, m.allocated AS y, rest.steps AS steps_left,
    '; at that rate the ' || CAST(CAST(round(memory) AS BIGINT) AS VARCHAR) || ' MB of the GPU are full after ' || $time_left || ' if nobody else needs any' AS until
-- Nobody waits for a month.
FROM m LEFT JOIN rest ON m.pid = rest.pid AND rest.seconds < 2592000
