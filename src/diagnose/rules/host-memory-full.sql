-- rule: host-memory-full
-- family: memory
-- kind: fact
-- confidence: measured
-- needs: process.metrics.cgroup_memory, process.metrics.disk_read_bytes
-- also: oom, out of memory, oom killer, memory limit, cgroup, container
-- says: {who}: its control group uses {used} of the {limit} MB that it may have, {held} of them in the training processes of this host: the kernel kills a process where more is needed
-- do: fewer workers or batches ahead (prefetch_factor), data that is mapped or read in parts instead of held, or a higher limit (Kubernetes: resources.limits.memory, Docker: --memory)
-- record: there must be a limit (memory.max of its control group)
WITH m AS (
    SELECT *, ROW_NUMBER() OVER (PARTITION BY pid ORDER BY ts DESC) AS newest FROM process.metrics
    WHERE $window AND cgroup_memory IS NOT NULL AND rss IS NOT NULL AND disk_read_bytes IS NOT NULL
), p AS (
    SELECT m.pid, m.rank, e.host, e.memory_limit AS limit, MIN(m.cgroup_memory) AS used, MIN(m.rss) AS rss,
        AVG(m.disk_read_bytes + COALESCE(m.data_workers_disk_read_bytes, 0.0)) AS reads
    FROM m JOIN $newest_environment AS e ON m.pid = e.pid WHERE m.newest <= 10 AND e.memory_limit IS NOT NULL
    GROUP BY m.pid, m.rank, e.host, e.memory_limit HAVING COUNT(*) = 10
), h AS (
    SELECT *, SUM(rss) OVER (PARTITION BY host, limit) AS rss_of_host, SUM(reads) OVER (PARTITION BY host) AS reads_of_host FROM p
), held AS (
    -- Pages that processes share count in each.
    SELECT *, CASE WHEN rss_of_host <= used THEN rss_of_host ELSE rss END AS held FROM h
)
-- Files that are cached count as used, and are given up where memory is short. Where mapped files are read again and again since
-- they do not fit, they are in the memory of the processes, too.
SELECT rank, host AS seen, 'note' AS severity, round(used) AS used, round(limit) AS limit, round(held) AS held
FROM held WHERE used >= 0.95 * limit AND held >= 0.85 * limit AND reads_of_host < 1e6
