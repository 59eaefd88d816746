-- python.step_breakdown: One row per step and process: what share of the step each part took, and which was the largest.
-- example: SELECT step, rank, duration, data, forward, backward, optimizer, comm, validation, checkpoint, other, largest FROM python.step_breakdown ORDER BY step DESC LIMIT 10
-- example: SELECT largest, COUNT(*) AS steps, AVG(duration) AS seconds FROM python.step_breakdown GROUP BY largest ORDER BY steps DESC
SELECT
    run,                                                       -- text: The run.
    host,                                                      -- text: Host name of the machine.
    pid,                                                       -- int: Process id on that host.
    rank,                                                      -- int: Global rank; NULL without a process group.
    step,                                                      -- bigint: Number of the step, from 0.
    ts,                                                        -- timestamp: When it began.
    duration,                                                  -- double, s: From the end of the step before to the end of this one.
    100 * data_time / NULLIF(duration, 0) AS data,             -- double, %: Waiting for the DataLoader.
    100 * forward_time / NULLIF(duration, 0) AS forward,       -- double, %: Time in outermost module calls.
    100 * backward_time / NULLIF(duration, 0) AS backward,     -- double, %: From the first autograd node to the last.
    100 * optimizer_time / NULLIF(duration, 0) AS optimizer,   -- double, %: Time in the step of every optimizer.
    100 * comm_time / NULLIF(duration, 0) AS comm,             -- double, %: Waiting for collectives outside the other parts.
    100 * COALESCE(validation_time, 0) / NULLIF(duration, 0) AS validation, -- double, %: In validation between two steps.
    100 * COALESCE(checkpoint_time, 0) / NULLIF(duration, 0) AS checkpoint, -- double, %: In what saves: torch.save, torch.distributed.checkpoint.save and safetensors.torch.save_file.
    100 * other_time / NULLIF(duration, 0) AS other,           -- double, %: The rest: logging, copies and everything else.
    CASE GREATEST(data_time, forward_time, backward_time, optimizer_time, comm_time, COALESCE(validation_time, 0),
        COALESCE(checkpoint_time, 0), other_time)
        WHEN data_time THEN 'data' WHEN forward_time THEN 'forward' WHEN backward_time THEN 'backward'
        WHEN optimizer_time THEN 'optimizer' WHEN comm_time THEN 'comm'
        WHEN validation_time THEN 'validation' WHEN checkpoint_time THEN 'checkpoint' ELSE 'other'
    END AS largest,                                            -- text: The part that took longest: data, forward, backward, optimizer, comm, validation, checkpoint or other.
    samples / NULLIF(duration - COALESCE(validation_time, 0) - COALESCE(checkpoint_time, 0), 0) AS samples_per_second -- double, 1/s: Samples over duration without validation and checkpoints; NULL where samples are not known.
FROM python.steps
