-- rule: exposed-communication
-- family: capture
-- kind: fact
-- confidence: likely
-- needs: gpu.kernels.duration >= 50
-- also: overlap, exposed, nccl, collectives
-- says: {who}: in {share:%} of the time that was captured the GPU did nothing but collectives; computation hid {hidden:%} of their time
-- do: overlap collectives with computation: gradients in buckets during backward (bucket_cap_mb), FSDP's prefetching, no_sync() between micro-batches. With uneven ranks most of it is waiting: capture all ranks and compare them
-- record: probe capture, in a run that trains on several GPUs
SELECT g.rank, 'communication' AS seen, CASE WHEN g.exposed_comm >= 0.25 * g.total THEN 'warn' ELSE 'note' END AS severity,
    g.exposed_comm / g.total AS share, 1 - g.exposed_comm / g.comm AS hidden
FROM gpu.timeline g JOIN $captures AS c ON g.run = c.run AND g.capture = c.capture
WHERE c.kernels >= 50 AND g.total > 0 AND g.exposed_comm >= 0.1 * g.total
