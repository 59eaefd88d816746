-- rule: checkpoint-stalls
-- family: host
-- kind: time
-- part: checkpoint
-- confidence: measured
-- needs: python.steps.checkpoint_time
-- record: agents of this version record it with each step
-- gate: times >= 3
-- explains: periodic-stall, irregular-stall
-- also: checkpoint, checkpointing, torch.save, save_file, safetensors, async_save
-- says: {who} waits while checkpoints are saved: {times} of them in these steps
-- do: save on another thread (torch.distributed.checkpoint.async_save), or less often
SELECT step, rank, checkpoint_time AS cost, 0.0 AS ref,
    SUM(CASE WHEN checkpoint_time > 0 THEN 1.0 ELSE 0.0 END) OVER (PARTITION BY pid) AS times
FROM python.steps WHERE $window
