-- rule: pipeline-bubble
-- family: communication
-- kind: fact
-- confidence: likely
-- needs: python.nccl_trace.operation_type
-- also: pipeline, pipeline parallel, bubble, micro batches, microbatches
-- says: a step has {micro} micro batches for {stages} stages of a pipeline: while it fills and empties, a stage waits for {share:%} of the step
-- do: more and smaller micro batches (four times as many as stages), or a schedule that interleaves stages or fills the gaps (ScheduleInterleaved1F1B, ScheduleZBVZeroBubble)
-- record: recorded where torch.distributed is used
WITH p AS (
    -- A stage sends activations and receives gradients, or the other way round. One that only sends is no stage.
    SELECT MAX(group_size) AS stages FROM python.nccl_trace WHERE $window AND operation_type IN ('send', 'recv') AND pid IN $pipelined
    HAVING COUNT(DISTINCT concat(pid, operation_type)) = 2 * COUNT(DISTINCT pid)
), m AS (
    SELECT median(micro_steps) AS micro, SUM(comm_time) / SUM(duration) AS waits FROM python.steps WHERE $window AND pid IN $pipelined HAVING COUNT(*) > 0
), b AS (
    SELECT m.micro, p.stages, m.waits, (p.stages - 1) / (m.micro + p.stages - 1.0) AS share FROM m CROSS JOIN p WHERE p.stages > 1 AND m.micro > 0
)
-- A schedule that fills the gaps waits for less.
SELECT 'bubble' AS seen, 'note' AS severity, CAST(micro AS BIGINT) AS micro, stages, share FROM b WHERE share >= 0.25 AND waits >= 0.5 * share
