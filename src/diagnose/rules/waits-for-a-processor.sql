-- rule: waits-for-a-processor
-- family: host
-- kind: fact
-- confidence: measured
-- needs: python.steps.run_delay
-- also: cpu, processor, neighbours, contention
-- says: {who} was ready and had no processor in {often} % of the time of its steps: other threads of the machine had it, which may be its own workers, or the limit of its cgroup was reached
-- do: look for neighbours (top), for more threads than processors (OMP_NUM_THREADS times ranks, DataLoader workers), and for a limit (/sys/fs/cgroup/cpu.max)
-- record: the kernel must count it (/proc/PID/schedstat)
WITH d AS (
    SELECT rank, SUM(run_delay) / SUM(duration) AS share, COUNT(*) AS steps FROM python.steps
    WHERE $window AND run_delay IS NOT NULL GROUP BY pid, rank HAVING COUNT(*) >= 40 AND SUM(run_delay) >= 0.2 * SUM(duration)
), r AS (
    SELECT *, CAST(CAST(round(100 * MIN(share) OVER ()) AS BIGINT) AS VARCHAR) AS least,
        CAST(CAST(round(100 * MAX(share) OVER ()) AS BIGINT) AS VARCHAR) AS most FROM d
)
SELECT rank, 'run_delay' AS seen, 'note' AS severity, share, steps, CASE WHEN least = most THEN most ELSE concat(least, ' to ', most) END AS often FROM r
