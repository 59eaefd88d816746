-- rule: threads-beyond-cores
-- family: environment
-- kind: fact
-- confidence: measured
-- needs: python.environment.torch_threads
-- also: threads, OMP_NUM_THREADS, oversubscription, quota, cgroup
-- says: {who} computes with {torch_threads} threads, {threads} on its machine together, and {cores} processors may be used
-- do: OMP_NUM_THREADS or torch.set_num_threads: the processors over the ranks of the machine
-- record: agents note it when training begins
WITH e AS (
    SELECT *, ROW_NUMBER() OVER (PARTITION BY pid ORDER BY ts DESC) AS newest FROM python.environment WHERE pid IN ($pids)
), h AS (
    SELECT host, SUM(torch_threads) AS threads FROM e WHERE newest = 1 GROUP BY host
), c AS (
    SELECT e.rank, e.torch_threads, h.threads, CASE WHEN e.torch_threads > LEAST(e.cpu_cores, ceil(COALESCE(e.cpu_quota, e.cpu_cores)))
        OR h.threads > ceil(e.cpu_quota) THEN LEAST(e.cpu_cores, COALESCE(e.cpu_quota, e.cpu_cores)) ELSE e.machine_cores END AS cores
    FROM e JOIN h ON e.host = h.host WHERE e.newest = 1
)
SELECT rank, 'threads' AS seen, 'note' AS severity, torch_threads, threads, cores FROM c
WHERE torch_threads > 1 AND threads > ceil(cores)
