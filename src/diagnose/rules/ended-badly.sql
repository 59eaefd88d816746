-- rule: ended-badly
-- family: crash
-- kind: fact
-- confidence: measured
-- also: crash
-- says: {who} ended by {seen}
-- do: see probe crash
WITH command AS (
  SELECT MAX(CAST(details ->> 'exit_status' AS BIGINT)) AS status FROM probe.events WHERE kind = 'command end'),
raised AS (
  SELECT pid, concat(', after an uncaught ', exception, CASE WHEN line IS NULL THEN '' ELSE concat(' (', regexp_replace(file, '.*/', ''), ':', line, ')') END) AS what,
    ROW_NUMBER() OVER (PARTITION BY pid ORDER BY ts DESC) AS newest
  FROM python.exceptions WHERE uncaught AND main),
ends AS (
  SELECT pid, rank, COALESCE(signal, concat('exit status ', CAST(exit_status AS VARCHAR))) AS how,
    COALESCE(signal IN ('SIGTERM', 'SIGINT', 'SIGHUP'), FALSE) AS asked_for, signal IS NULL AS exited,
    COALESCE((SELECT status FROM command) = 0, FALSE) AS command_well
  FROM probe.agents WHERE pid IN ($pids) AND (signal IS NOT NULL OR exit_status <> 0))
-- Some programs end their own processes so, and go on to a good end: Ray its actors, multiprocessing a pool that is left by `with`.
SELECT rank, concat(how, COALESCE(what, ''), CASE WHEN command_well THEN '; the command went on and ended with status 0' ELSE '' END) AS seen,
  CASE WHEN command_well AND (asked_for OR exited) OR asked_for AND rank IS NULL THEN 'note'
    WHEN command_well OR asked_for THEN 'warn' ELSE 'critical' END AS severity
FROM ends LEFT JOIN raised ON ends.pid = raised.pid AND raised.newest = 1
