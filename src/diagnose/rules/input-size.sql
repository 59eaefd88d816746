-- rule: input-size
-- family: device
-- kind: fact
-- confidence: measured
-- needs: python.torch_trace.input_shape
-- also: lengths, sequence length, shapes, dynamic shapes, padding, variation, noise, inconsistent
-- says: {who}: how long a step takes follows the size of its input, from {least:ms} to {most:ms} in forward and backward for inputs of {small} to {large} elements: that is {share:%} of the variation{of}
-- do: it is no defect: compare steps of one size only, plan with the median ({p50:ms}) and p95 ({p95:ms}), and put samples of similar length into one batch
-- record: probe config detail=every-step
WITH calls AS (
    SELECT pid, median(micro_steps) AS calls FROM python.steps WHERE $window GROUP BY pid
), s AS (
    SELECT s.pid, s.rank, s.forward_time + s.backward_time AS took, s.cpu_time, size.size FROM python.steps s
    JOIN $input_size AS size ON s.pid = size.pid AND s.step = size.step
    -- Steps with more calls of the model are not those with larger inputs.
    JOIN calls ON s.pid = calls.pid AND s.micro_steps = calls.calls
    WHERE s.warmup IS NOT TRUE AND size.size > 0 AND s.forward_time + s.backward_time > 0
        -- A new size may have been compiled for.
        AND NOT EXISTS (SELECT 1 FROM python.pauses c WHERE c.kind = 'compilation' AND c.pid = s.pid AND c.step = s.step)
)
SELECT rank, 'input size' AS seen, 'note' AS severity, MIN(least) OVER () AS least, MAX(most) OVER () AS most,
    MIN(small) OVER () AS small, MAX(large) OVER () AS large, p50, p95,
    -- How long neighbours have the processors hides what follows the size, so the thread's own processor time says it, too.
    CASE WHEN wall >= 0.71 THEN power(wall, 2) ELSE power(computes, 2) END AS share,
    CASE WHEN wall >= 0.71 THEN '' ELSE ' of its processor time' END AS of
FROM (SELECT rank, MIN(took) AS least, MAX(took) AS most, MIN(size) AS small, MAX(size) AS large,
    approx_percentile_cont(took, 0.5) AS p50, approx_percentile_cont(took, 0.95) AS p95, corr(ln(took), ln(size)) AS wall,
    corr(CASE WHEN cpu_time > 0 THEN ln(cpu_time) END, ln(size)) AS computes
FROM s GROUP BY pid, rank
HAVING COUNT(*) >= 40 AND COUNT(DISTINCT size) >= 3 AND MAX(size) >= 1.5 * MIN(size))
WHERE wall >= 0.71 OR computes >= 0.71
