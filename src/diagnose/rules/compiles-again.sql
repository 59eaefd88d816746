-- rule: compiles-again
-- family: host
-- kind: time
-- parts: together
-- confidence: measured
-- needs: python.steps.gc_time
-- levels: 2, 25, 101
-- explains: periodic-stall, irregular-stall, work-between-parts, span-between-parts, rank-slow, slower-than-reference
-- also: recompile, recompiling, recompilation, torch.compile, compile
-- says: {who} compiles again and again: {recompilations} recompilations in {long_steps} of these steps, most of them of frame {frame}
-- do: TORCH_LOGS=recompiles says which function and why; mark what varies (torch._dynamo.mark_dynamic, dynamic=True), or pad inputs to a few sizes
-- record: PROBE_LAYERS must not leave out pauses
WITH c AS (
    -- FRAME/0 is a first compilation, which may come late; before torch 2.7 that is not known.
    SELECT pid, step, part, duration, split_part(compile_id, '/', 1) AS frame FROM python.pauses
    WHERE $window AND kind = 'compilation' AND (compile_id IS NULL OR split_part(split_part(compile_id, '/', 2), '_', 1) <> '0')
), p AS (
    SELECT pid, step, part, SUM(duration) AS cost FROM c GROUP BY pid, step, part
), whole AS (
    -- Some sizes come first in the beginning. Who compiles again and again still does.
    SELECT pid, COUNT(*) AS recompilations, COUNT(DISTINCT step) AS long_steps,
        CASE WHEN COUNT(DISTINCT step) < 4 OR MAX(step) < $first + 0.75 * ($last - $first)
            THEN concat(CAST(COUNT(*) AS VARCHAR), ' recompilation', CASE WHEN COUNT(*) > 1 THEN 's' ELSE '' END, ' in ', CAST(COUNT(DISTINCT step) AS VARCHAR),
                ' of these steps, ', CAST(round(SUM(duration), 2) AS VARCHAR), ' s in all: it takes 4 such steps, and one of them in the last quarter') END AS ruled_out
    FROM c GROUP BY pid
), f AS (
    SELECT pid, COALESCE(frame, '?') AS frame, ROW_NUMBER() OVER (PARTITION BY pid ORDER BY COUNT(*) DESC, frame) AS position
    FROM c GROUP BY pid, frame
), parts AS (
    SELECT DISTINCT pid, part FROM p
)
SELECT s.step, s.rank, parts.part, COALESCE(p.cost, 0.0) AS cost, 0.0 AS ref, whole.recompilations, whole.long_steps, f.frame, whole.ruled_out
FROM python.steps s JOIN whole ON s.pid = whole.pid JOIN parts ON s.pid = parts.pid
    JOIN f ON s.pid = f.pid AND f.position = 1
    LEFT JOIN p ON s.pid = p.pid AND s.step = p.step AND p.part = parts.part
WHERE s.step BETWEEN $first AND $last AND s.pid IN ($pids)
