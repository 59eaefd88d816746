-- rule: grows-beyond-input
-- family: device
-- kind: fact
-- confidence: measured
-- needs: python.torch_trace.input_shape
-- also: quadratic, attention is quadratic
-- says: {who}: the own time of {subject} grows with the size of the input to the power of {growth} (1 would be in proportion), and is {share:%} of the steps
-- do: for attention: torch.nn.functional.scaled_dot_product_attention, or a window; else shorter inputs, or samples of similar length in one batch
-- record: probe config detail=every-step
WITH calls AS (
    SELECT pid, median(micro_steps) AS calls FROM python.steps WHERE $window GROUP BY pid
), s AS (
    SELECT s.pid, s.rank, s.step, s.duration, size.size FROM python.steps s JOIN $input_size AS size ON s.pid = size.pid AND s.step = size.step
    -- A call takes a while for the smallest input, too: steps with more calls are not those with larger inputs.
    JOIN calls ON s.pid = calls.pid AND s.micro_steps = calls.calls
    WHERE s.warmup IS NOT TRUE AND size.size > 0
        -- A new size may have been compiled for.
        AND NOT EXISTS (SELECT 1 FROM python.pauses c WHERE c.kind = 'compilation' AND c.pid = s.pid AND c.step = s.step)
), m AS (
    SELECT pid, step, module_type, SUM(duration) AS took FROM python.torch_trace
    WHERE $window AND stage IN ('forward', 'backward') AND module_type IS NOT NULL GROUP BY pid, step, module_type HAVING SUM(duration) > 0
)
SELECT s.rank, m.module_type AS subject, 'growth' AS seen, 'note' AS severity, regr_slope(ln(m.took), ln(s.size)) AS growth,
    SUM(m.took) / SUM(s.duration) AS share
FROM s JOIN m ON s.pid = m.pid AND s.step = m.step GROUP BY s.pid, s.rank, m.module_type
HAVING COUNT(*) >= 40 AND MAX(s.size) >= 3 * MIN(s.size) AND SUM(m.took) >= 0.1 * SUM(s.duration)
    AND regr_slope(ln(m.took), ln(s.size)) >= 1.3 AND corr(ln(m.took), ln(s.size)) >= 0.9
