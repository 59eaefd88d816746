-- rule: tensor-cores-unused
-- family: capture
-- kind: fact
-- confidence: likely
-- needs: gpu.kernels.duration >= 50
-- also: tensor cores, mixed precision, autocast, bf16, fp16, tf32, amp
-- says: {who}: {share:%} of the time of kernels is spent in matrix products and convolutions, which hardly use the tensor cores of {devices}
-- do: torch.autocast("cuda", dtype=torch.bfloat16), or torch.set_float32_matmul_precision("high") to keep float32; on a V100 or T4, autocast with float16 and a GradScaler
-- record: probe capture, in a run that trains on a GPU
SELECT u.rank, 'tensor cores' AS seen, CASE WHEN u.eligible_percent >= 50 THEN 'warn' ELSE 'note' END AS severity,
    u.eligible_percent / 100 AS share, c.devices
FROM gpu.tensor_core_use u JOIN $captures AS c ON u.run = c.run AND u.capture = c.capture
WHERE c.kernels >= 50 AND u.eligible_percent >= 30 AND u.tensor_core_time <= 0.1 * u.eligible_time
    AND regexp_like(c.devices, '(^|[^A-Z0-9])(V100|T4|A10|A10G|A16|A30|A40|A100|A800|H100|H200|H20|H800|L4|L40|L40S|GH200|B100|B200|B300|GB200|GB300|RTX)([^A-Z0-9]|$)')
