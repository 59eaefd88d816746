-- rule: processor-quota
-- family: host
-- kind: fact
-- confidence: measured
-- needs: process.metrics.throttled
-- explains: waits-for-a-processor
-- also: quota, cgroup, throttling, cpu limit, container
-- says: {who}: the processor quota of its control group was used up in {share:%} of the time, and nothing of it ran until the next period
-- do: raise the limit (Kubernetes: resources.limits.cpu, Docker: --cpus, systemd: CPUQuota), or use fewer threads and workers
-- record: there must be a quota (cpu.max of its control group)
SELECT rank, 'throttled' AS seen, CASE WHEN AVG(throttled) >= 20 THEN 'warn' ELSE 'note' END AS severity,
    AVG(throttled) / 100 AS share, COUNT(*) AS seconds
FROM process.metrics WHERE $window AND throttled IS NOT NULL GROUP BY pid, rank
HAVING COUNT(*) >= 5 AND AVG(throttled) >= 5
