-- rule: one-thread
-- family: environment
-- kind: fact
-- confidence: possible
-- needs: python.environment.torch_threads
-- also: threads, OMP_NUM_THREADS, torchrun
-- says: {who} computes with one thread, and its machine has {cores} processors for {ranks} of them
-- do: OMP_NUM_THREADS, which torchrun sets to 1 where it is not set, or torch.set_num_threads: the processors over the ranks of the machine, less those for data workers
-- record: agents note it when training begins
WITH e AS (
    SELECT * FROM $newest_environment
), h AS (
    SELECT host, COUNT(*) AS ranks, MIN(LEAST(cpu_cores, COALESCE(cpu_quota, cpu_cores))) AS cores, SUM(COALESCE(num_workers, 0)) AS workers
    FROM e GROUP BY host
)
SELECT e.rank, 'one thread' AS seen, 'note' AS severity, h.cores, h.ranks FROM e JOIN h ON e.host = h.host
WHERE e.device = 'cpu' AND e.torch_threads = 1 AND h.cores - h.workers >= 4 * h.ranks
