-- rule: ended-badly
-- family: crash
-- kind: fact
-- confidence: measured
-- also: crash
-- says: {who} ended by {seen}
-- do: probe crash says more
SELECT rank, COALESCE(signal, concat('exit status ', CAST(exit_status AS VARCHAR))) AS seen, 'critical' AS severity
FROM probe.agents WHERE pid IN ($pids) AND (signal IS NOT NULL OR exit_status <> 0)
