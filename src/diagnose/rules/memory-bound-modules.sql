-- rule: memory-bound-modules
-- family: device
-- kind: fact
-- confidence: likely
-- needs: python.steps.gpu_idle_max >= 8
-- also: elementwise, memory-bound, fusion, normalization, dropout, activation
-- says: {who}: {share:%} of the GPU's time in modules is in those that compute little and read and write much (most of it in {type})
-- do: torch.compile joins them with what is before and after them; else fused variants (F.scaled_dot_product_attention, apex, Liger)
-- record: it is recorded where training is on a GPU, in steps with detail
WITH t AS (
    SELECT pid, rank, module_type, SUM(duration) AS took,
        regexp_like(module_type, 'Norm|ReLU|GELU|SiLU|Swish|Sigmoid|Tanh|ELU$|Softmax|Softplus|Dropout|Hardswish|Mish') AS light
    FROM python.torch_trace WHERE $window AND stage IN ('forward', 'backward', 'recompute') AND duration > 0 AND device LIKE 'cuda%'
        AND NOT compiled AND module_type IS NOT NULL AND pid IN $busy_gpu GROUP BY pid, rank, module_type
), most AS (
    SELECT pid, module_type, ROW_NUMBER() OVER (PARTITION BY pid ORDER BY took DESC, module_type) AS position FROM t WHERE light
)
SELECT t.rank, 'share' AS seen, 'note' AS severity, SUM(CASE WHEN t.light THEN t.took ELSE 0 END) / SUM(t.took) AS share, most.module_type AS type
FROM t JOIN most ON t.pid = most.pid AND most.position = 1 GROUP BY t.pid, t.rank, most.module_type
HAVING SUM(CASE WHEN t.light THEN t.took ELSE 0 END) >= 0.25 * SUM(t.took)
