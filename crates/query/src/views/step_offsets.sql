-- python.step_offsets: One row per process of a process group that has finished steps: what is added to its own count of steps to get that of the lowest rank, which trained beside it. Counts differ after an attach, a restart of one rank alone, or a step of one rank alone.
-- example: SELECT rank, pid, generation, step_offset, known_by FROM python.step_offsets ORDER BY generation, rank
-- example: SELECT s.step + o.step_offset AS step, o.rank, duration FROM python.steps s JOIN python.step_offsets o ON s.host = o.host AND s.pid = o.pid AND s.rank = o.rank ORDER BY 1 DESC, 2 LIMIT 10
WITH own AS (
    SELECT run, host, pid, rank, CAST(MIN(ts) AS BIGINT) AS begins,
        CAST(MAX(ts) AS BIGINT) + CAST(1e9 * AVG(duration) AS BIGINT) AS ends,
        CAST(ROW_NUMBER() OVER (PARTITION BY run, rank ORDER BY MIN(ts) DESC, pid) AS BIGINT) - 1 AS generation,
        COUNT(*) OVER (PARTITION BY run, rank) AS starts
    FROM python.steps WHERE rank IS NOT NULL GROUP BY run, host, pid, rank
), issued AS (
    -- Of many operations some, of all ranks the same. Messages are counted by two ranks of a group alone, so the numbers
    -- of operations on a group with messages say nothing.
    SELECT n.run AS run, n.host AS host, n.pid AS pid, n.rank AS rank, generation, group_name, step,
        FIRST_VALUE(step) OVER same AS lowest_step, FIRST_VALUE(n.rank) OVER same AS lowest_rank
    FROM own JOIN python.nccl_trace n ON own.run = n.run AND own.host = n.host AND own.pid = n.pid AND own.rank = n.rank
    WHERE seq % ((SELECT COUNT(*) FROM python.nccl_trace) / (2000 + 50 * (SELECT COUNT(*) FROM own)) + 1) = 0
        AND group_name NOT IN (SELECT group_name FROM python.nccl_trace WHERE operation_type IN ('send', 'recv'))
    WINDOW same AS (PARTITION BY n.run, generation, group_name, seq, operation_type ORDER BY n.rank)
), common AS (
    SELECT run, host, pid, rank, lowest_rank, MIN(lowest_step - step) AS least, MAX(lowest_step - step) AS most,
        COUNT(*) AS operations, ROW_NUMBER() OVER (PARTITION BY run, host, pid, rank, lowest_rank ORDER BY COUNT(*) DESC, group_name) AS position
    FROM issued WHERE rank <> lowest_rank GROUP BY run, host, pid, rank, lowest_rank, group_name
), beside AS (
    SELECT own.*, attached.pid IS NOT NULL AS attached, FIRST_VALUE(rank) OVER lowest AS lowest_rank,
        FIRST_VALUE(starts) OVER lowest AS lowest_starts, FIRST_VALUE(attached.pid IS NOT NULL) OVER lowest AS lowest_attached,
        LEAST(ends, FIRST_VALUE(ends) OVER lowest) > GREATEST(begins, FIRST_VALUE(begins) OVER lowest) AS overlaps
    FROM own LEFT JOIN (SELECT DISTINCT run, host, pid FROM probe.agents WHERE attached) attached
        ON own.run = attached.run AND own.host = attached.host AND own.pid = attached.pid
    WINDOW lowest AS (PARTITION BY own.run, generation ORDER BY rank)
), known AS (
    SELECT b.run AS run, b.host AS host, b.pid AS pid, b.rank AS rank, generation, operations, least,
        CASE WHEN b.rank = b.lowest_rank THEN 'lowest rank' WHEN NOT overlaps THEN NULL WHEN least = most THEN 'collectives'
            WHEN operations IS NULL AND NOT attached AND NOT lowest_attached AND starts = lowest_starts THEN 'start'
        END AS known_by
    FROM beside b LEFT JOIN common c
        ON b.run = c.run AND b.host = c.host AND b.pid = c.pid AND b.rank = c.rank AND b.lowest_rank = c.lowest_rank AND c.position = 1
)
SELECT
    run,                                                       -- text: The run.
    host,                                                      -- text: Host name of the machine.
    pid,                                                       -- int: Process id on that host.
    rank,                                                      -- int: Global rank.
    generation,                                                -- bigint: Which start of the rank it is: 0 is its newest process. Processes of one generation are compared.
    CASE WHEN known_by = 'collectives' THEN least WHEN known_by IS NOT NULL THEN 0 END AS step_offset, -- bigint: What is added to its step to get the step of the lowest rank of its generation; NULL where that is not known.
    known_by,                                                  -- text: lowest rank (it is that one), collectives (all operations of a process group that both issued were issued in steps which differ by this number), or start (no operation that both issued can be compared, and both were recorded from their start on; groups with sends and receives are not compared, because only two of their ranks count these). NULL where it is not known: the difference changed, nothing shows it, or they did not train at the same time.
    operations,                                                -- bigint: Operations that were compared: those that both issued on the group with most of them, of many a sample. NULL for none.
    COUNT(known_by) OVER (PARTITION BY run, generation) AS ranks -- bigint: Ranks of the generation whose offset is known.
FROM known
