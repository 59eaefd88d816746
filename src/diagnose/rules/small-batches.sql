-- rule: small-batches
-- family: device
-- kind: fact
-- confidence: likely
-- needs: python.torch_trace.input_shape
-- also: batch size, batch_size, overhead, launch overhead, small batches, small kernels
-- says: {who}: the model is called with batches of {samples}, and its modules take {us} microseconds a call: most of that is the overhead of calls, whatever they are given
-- do: larger batches (batch_size), which take hardly longer; where a batch has to be so small, torch.compile makes fewer and larger operations of many
-- record: probe config detail=every-step
WITH n AS (
    -- A server answers when it is asked.
    SELECT pid, rank, median(CAST(samples AS DOUBLE) / micro_steps) AS samples FROM python.steps
    WHERE $window AND samples IS NOT NULL AND micro_steps > 0 AND kind IS DISTINCT FROM 'call'
    GROUP BY pid, rank HAVING COUNT(*) >= 40
), m AS (
    -- What a call takes where neither a neighbour nor the first look at its memory makes it longer.
    SELECT pid, module, stage, approx_percentile_cont(duration, 0.1) AS took, COUNT(*) AS calls FROM python.torch_trace
    WHERE $window AND stage IN ('forward', 'backward') AND module IS NOT NULL GROUP BY pid, module, stage
), c AS (
    SELECT pid, SUM(took * calls) / SUM(calls) AS took, SUM(calls) AS calls,
        SUM(CASE WHEN took < 0.0001 THEN took * calls ELSE 0 END) / SUM(took * calls) AS short
    FROM m GROUP BY pid HAVING SUM(took * calls) > 0
)
SELECT n.rank, 'samples' AS seen, 'note' AS severity, n.samples, round(1e6 * c.took) AS us, c.short FROM n JOIN c ON n.pid = c.pid
WHERE n.samples < 4 AND c.short >= 0.8 AND c.calls >= 200
