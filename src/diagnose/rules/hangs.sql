-- rule: hangs
-- family: crash
-- kind: fact
-- confidence: measured
-- also: hang, hung, stuck, deadlock
-- says: training stopped in step {stopped} and did not go on: {message}
-- do: probe hang shows where each rank is, or was when it was noticed; probe stack has all threads
SELECT rank, 'hang' AS seen, 'critical' AS severity, CAST(step AS VARCHAR) AS stopped, message
FROM (SELECT *, ROW_NUMBER() OVER (ORDER BY ts DESC) AS newest FROM probe.events WHERE kind = 'hang' AND step IS NOT NULL)
-- It is taken back where training goes on.
WHERE newest = 1 AND severity <> 'info' AND step > (SELECT COALESCE(MAX(step), -1) FROM python.steps WHERE pid IN ($pids))
