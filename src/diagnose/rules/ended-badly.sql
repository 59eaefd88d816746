-- rule: ended-badly
-- family: crash
-- kind: fact
-- confidence: measured
-- also: crash
-- says: {who} ended by {seen}
-- do: probe crash says more
WITH command AS (
  SELECT MAX(CAST(details ->> 'exit_status' AS BIGINT)) AS status FROM probe.events WHERE kind = 'command end'),
ends AS (
  SELECT rank, COALESCE(signal, concat('exit status ', CAST(exit_status AS VARCHAR))) AS how,
    COALESCE(signal IN ('SIGTERM', 'SIGINT', 'SIGHUP'), FALSE) AS asked_for, signal IS NULL AS exited,
    COALESCE((SELECT status FROM command) = 0, FALSE) AS command_well
  FROM probe.agents WHERE pid IN ($pids) AND (signal IS NOT NULL OR exit_status <> 0))
-- Some programs end their own processes so, and go on to a good end: Ray its actors, multiprocessing a pool that is left by `with`.
SELECT rank, concat(how, CASE WHEN command_well THEN '; the command went on and ended with status 0' ELSE '' END) AS seen,
  CASE WHEN command_well AND (asked_for OR exited) OR asked_for AND rank IS NULL THEN 'note'
    WHEN command_well OR asked_for THEN 'warn' ELSE 'critical' END AS severity
FROM ends
