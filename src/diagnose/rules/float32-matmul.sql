-- rule: float32-matmul
-- family: device
-- kind: fact
-- confidence: likely
-- needs: python.environment.gpu_models
-- also: tf32, tensor cores, matmul precision, mixed precision, autocast, bfloat16, amp
-- says: {who} multiplies matrices in float32 on a {model}, without its tensor cores: layers that do so are {share:%} of the GPU's time in modules
-- do: torch.autocast('cuda', torch.bfloat16); or torch.set_float32_matmul_precision('high') (TF32), which changes no types
-- record: it is noted where training is on a GPU
WITH e AS (
    SELECT * FROM $newest_environment
), exact AS (
    SELECT pid, rank, gpu_models, COALESCE(cudnn_tf32, true) AS convolves FROM e
    WHERE device LIKE 'cuda%' AND parameter_dtype LIKE '%float32%' AND autocast IS FALSE
        AND float32_matmul_precision = 'highest' AND matmul_tf32 IS NOT TRUE
        -- Ampere and later.
        AND regexp_like(gpu_models, '\b(A10|A16|A30|A40|A100|A800|A[2456]000|L4|L20|L40S?|H20|H100|H200|H800|GH200|B100|B200|B300|GB200|GB300|RTX (30|40|50)[0-9]{2})\b')
), m AS (
    SELECT t.pid, SUM(CASE WHEN regexp_like(t.module_type, 'Linear|Attention|LSTM|GRU|Bilinear') OR NOT exact.convolves AND t.module_type LIKE 'Conv%'
        THEN t.duration ELSE 0 END) / SUM(t.duration) AS share
    FROM python.torch_trace t JOIN exact ON t.pid = exact.pid
    WHERE t.step BETWEEN $first AND $last AND t.stage IN ('forward', 'backward', 'recompute') AND t.duration > 0 AND t.device LIKE 'cuda%' GROUP BY t.pid
)
SELECT exact.rank, exact.gpu_models AS model, 'precision' AS seen, 'note' AS severity, m.share
FROM exact JOIN m ON exact.pid = m.pid WHERE exact.pid IN $busy_gpu AND m.share >= 0.5
