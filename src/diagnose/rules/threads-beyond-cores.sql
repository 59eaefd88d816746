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
    SELECT * FROM $newest_environment
), h AS (
    SELECT host, SUM(torch_threads) AS threads FROM e GROUP BY host
), c AS (
    SELECT e.pid, e.rank, e.torch_threads, h.threads, CASE WHEN e.torch_threads > LEAST(e.cpu_cores, ceil(COALESCE(e.cpu_quota, e.cpu_cores)))
        OR h.threads > ceil(e.cpu_quota) THEN LEAST(e.cpu_cores, COALESCE(e.cpu_quota, e.cpu_cores)) ELSE e.machine_cores END AS cores
    FROM e JOIN h ON e.host = h.host
), waits AS (
    SELECT pid, SUM(run_delay) / SUM(duration) AS share FROM python.steps WHERE $window AND run_delay IS NOT NULL GROUP BY pid
)
-- It is worth a warning where the thread that trains waits for a processor, too: its own threads have them.
SELECT rank, 'threads' AS seen, CASE WHEN torch_threads >= 2 * ceil(cores) AND waits.share >= 0.2 THEN 'warn' ELSE 'note' END AS severity,
    torch_threads, threads, cores
FROM c LEFT JOIN waits ON c.pid = waits.pid
WHERE torch_threads > 1 AND threads > ceil(cores)
