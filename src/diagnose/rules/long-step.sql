-- rule: long-step
-- family: host
-- kind: fact
-- confidence: measured
-- needs: python.steps.run_delay
-- also: stall, stalls, hiccups, long steps, outliers
-- says: {who}: {which} took {longer:ms} longer than usual in {part}{together}: {share:%} of the time of {steps} steps; the thread that trains computed for {computed:%} of that{where}
-- do: find what the program does there and not in other steps, as a file, a lock or the network, or a sample that takes long to load (probe NAME query "SELECT * FROM python.steps WHERE step = {first}")
-- record: the kernel must count it (/proc/PID/schedstat)
WITH left_out AS (
    -- Steps whose operators were watched, that were captured or had a snippet of probe eval; the ones beside them may wait for that.
    SELECT pid, step FROM python.operator_counts WHERE $window
    -- A new epoch: workers start, and programs log or validate at the end of the one before.
    UNION SELECT pid, step FROM python.data_trace WHERE $window AND batch_index = 0
    UNION SELECT s.pid, s.step FROM python.steps s JOIN python.captures c ON s.pid = c.pid
        WHERE s.step BETWEEN GREATEST(c.first_step - 2, $first) AND LEAST(c.last_step + 2, $last)
    UNION SELECT s.pid, s.step FROM python.steps s JOIN probe.evals e ON s.step BETWEEN e.step - 1 AND e.step + 1
        WHERE s.step BETWEEN $first AND $last AND s.pid IN ($pids)
), compiled AS (
    SELECT pid, step, SUM(duration) AS seconds FROM python.pauses WHERE $window AND kind = 'compilation' GROUP BY pid, step
), alone AS (
    -- Ranks may wait for each other in forward and backward.
    SELECT MIN(pid) AS pid FROM python.steps WHERE $window HAVING COUNT(DISTINCT pid) = 1
), part AS (
    -- What waits for a processor, for garbage collections and for compilations is taken off. A server waits for requests.
    SELECT t.pid, t.rank, t.step, t.ts, t.duration, t.micro_steps, t.cpu_time, t.part, t.part_time AS cost, input.size,
        t.run_delay + COALESCE(t.gc_time, 0.0) + COALESCE(compiled.seconds, 0.0) AS waited
    FROM $part_times AS t LEFT JOIN compiled ON t.pid = compiled.pid AND t.step = compiled.step
        LEFT JOIN $input_size AS input ON t.pid = input.pid AND t.step = input.step
    WHERE t.step BETWEEN $first AND $last AND t.pid IN ($pids) AND t.kind IS DISTINCT FROM 'call' AND t.run_delay IS NOT NULL AND t.captured IS NOT TRUE
        AND (t.part IN ('optimizer', 'other') OR t.part = 'data' AND t.pid NOT IN $delayed_workers
            OR t.part IN ('forward', 'backward') AND t.pid IN (SELECT pid FROM alone))
), usual AS (
    SELECT *, median(cost) OVER pp AS usual_cost, median(duration) OVER pp AS usual_step, median(waited) OVER pp AS usually_waited,
        median(micro_steps) OVER pp AS usual_calls, median(size) OVER pp AS usual_size, median(cpu_time) OVER pp AS usual_cpu,
        COUNT(*) OVER pp AS steps, SUM(duration) OVER pp AS whole
    FROM part WINDOW pp AS (PARTITION BY pid, part)
), spread AS (
    SELECT *, cost - usual_cost - GREATEST(waited - usually_waited, 0.0) AS excess, median(abs(cost - usual_cost)) OVER (PARTITION BY pid, part) AS deviation FROM usual
), long AS (
    -- Such a step takes twice as long as others at least. One with more calls of the model, as of a policy that plays, does more.
    SELECT spread.*, COUNT(*) OVER (PARTITION BY spread.pid, part) AS times, left_out.step IS NULL AND spread.step >= $first + 8
            -- The input may be larger; its size is known of steps with detail alone.
            AND (part NOT IN ('forward', 'backward') OR size <= usual_size) AS is_clear
    FROM spread LEFT JOIN left_out ON spread.pid = left_out.pid AND spread.step = left_out.step
    WHERE excess > GREATEST(usual_step, 9.0 * deviation) AND micro_steps <= usual_calls
), placed AS (
    -- A row for each such step and line that was on the stack meanwhile.
    SELECT l.pid, l.rank, l.part, l.step, l.excess, l.usual_step, l.whole, l.steps, l.cpu_time - l.usual_cpu AS computed, COUNT(t.pid) AS samples,
        concat(COALESCE(t.file, t.library_file), ':', COALESCE(t.line, t.library_line), ' in ', COALESCE(t.function, t.library_function)) AS place
    FROM long l LEFT JOIN python.stack_samples t ON l.pid = t.pid AND l.part = t.part
        AND CAST(t.ts AS BIGINT) BETWEEN CAST(l.ts AS BIGINT) AND CAST(l.ts AS BIGINT) + CAST(1e9 * l.duration AS BIGINT)
    WHERE l.is_clear AND l.times <= 3
    GROUP BY l.pid, l.rank, l.part, l.step, l.excess, l.usual_step, l.whole, l.steps, l.cpu_time, l.usual_cpu, place
), numbered AS (
    SELECT *, SUM(samples) OVER (PARTITION BY pid, part, place) AS there, ROW_NUMBER() OVER (PARTITION BY pid, part, step ORDER BY place) = 1 AS is_first FROM placed
), found AS (
    SELECT pid, rank, part, COUNT(*) FILTER (WHERE is_first) AS count, MIN(step) AS first, MAX(steps) AS steps,
        string_agg(CASE WHEN is_first THEN CAST(step AS VARCHAR) END, ', ' ORDER BY step) AS numbers,
        SUM(CASE WHEN is_first THEN excess END) AS longer, SUM(CASE WHEN is_first THEN computed END) AS computed, MAX(excess / usual_step) AS most, MAX(whole) AS whole,
        SUM(samples) AS samples, MAX(there) AS there, first_value(place ORDER BY there DESC, place) AS place
    FROM numbered GROUP BY pid, rank, part
)
SELECT rank, part, numbers AS seen, first, steps, longer, longer / whole AS share, LEAST(GREATEST(computed / longer, 0.0), 1.0) AS computed,
    CASE count WHEN 1 THEN 'step ' ELSE 'steps ' END || numbers AS which, CASE count WHEN 1 THEN '' ELSE ', together' END AS together,
    CASE WHEN longer >= 0.2 * whole AND longer >= 10 THEN 'warn' ELSE 'note' END AS severity,
    CASE WHEN there >= 5 AND 2 * there >= samples
        THEN '; ' || CAST(CAST(round(100.0 * there / samples) AS BIGINT) AS VARCHAR) || ' % of that time is at ' || place || ' (sampled)' ELSE '' END AS where
FROM found WHERE steps >= 100 AND longer >= 0.02 * whole AND longer >= 0.1 AND most >= 10
