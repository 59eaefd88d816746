-- rule: irregular-stall
-- family: host
-- kind: time
-- confidence: likely
-- line: sampled
-- also: stall, stalls, hiccups, long steps, outliers
-- says: {who}: in {times} of {steps} steps, between steps {since} and {until}, {part} takes {stall:ms} longer
-- do: find what the program does in those steps and not in the others (--sql N is the query that lists them): in data, a sample that takes long to load (fetch_time in python.data_trace); in other, a file, a lock or the network
WITH part AS (
    -- A step may wait for a processor, or collect garbage, in any part. What that takes longer than usual is taken off each part.
    SELECT pid, rank, step, duration, micro_steps, part, part_time AS cost, COALESCE(run_delay, 0.0) + COALESCE(gc_time, 0.0) AS waited
    FROM $part_times AS t
    -- A server that waits for requests does nothing else. Of forward and backward the input may be larger.
    WHERE $window AND part IN ('data', 'optimizer', 'other') AND kind IS DISTINCT FROM 'call' AND (part <> 'data' OR pid NOT IN $delayed_workers)
), usual AS (
    SELECT *, median(cost) OVER pp AS ref, median(duration) OVER pp AS usual_step, median(waited) OVER pp AS usually_waited,
        median(micro_steps) OVER pp AS usual_calls, COUNT(*) OVER pp AS steps
    FROM part WINDOW pp AS (PARTITION BY pid, part)
), spread AS (
    SELECT *, cost - ref - GREATEST(waited - usually_waited, 0.0) AS excess, median(abs(cost - ref)) OVER (PARTITION BY pid, part) AS deviation FROM usual
), long AS (
    -- Such a step takes twice as long as others at least. One with more calls of the model, as of a policy that plays, does more.
    SELECT *, CASE WHEN excess > GREATEST(usual_step, 9.0 * deviation) AND micro_steps <= usual_calls THEN excess END AS longer FROM spread
), counted AS (
    SELECT *, COUNT(longer) OVER pp AS times, AVG(longer) OVER pp AS stall,
        CAST(MIN(CASE WHEN longer > 0.0 THEN step END) OVER pp AS VARCHAR) AS since,
        CAST(MAX(CASE WHEN longer > 0.0 THEN step END) OVER pp AS VARCHAR) AS until FROM long WINDOW pp AS (PARTITION BY pid, part)
)
SELECT step, rank, part, ref + COALESCE(longer, 0.0) AS cost, ref, times, steps, stall, since, until FROM counted
-- What comes in more than a third of the steps is not occasional.
WHERE times >= 4 AND times * 3 <= steps
