-- rule: workers-beyond-cores
-- family: data
-- kind: fact
-- confidence: measured
-- needs: process.metrics.data_workers_run_delay
-- explains: waits-for-a-processor
-- also: num_workers, too many workers, oversubscription
-- says: {workers} data workers on {cores} processors: each was ready and had none for {delay:%} of the time
-- do: fewer workers (num_workers): with the threads that train, no more than there are processors
-- record: recorded where a DataLoader has workers, with torch 2.6 or later
WITH p AS (
    SELECT host, pid, AVG(data_workers) AS workers, SUM(data_workers_run_delay) / SUM(data_workers) / 100 AS delay,
        SUM(data_workers_run_delay) / COUNT(*) / 100 AS waiting, SUM(data_workers_percent) / COUNT(*) / 100 AS computes
    FROM process.metrics WHERE $window AND data_workers > 0 AND data_workers_run_delay IS NOT NULL GROUP BY host, pid HAVING COUNT(*) >= 5
), h AS (
    SELECT host, SUM(workers) AS workers, MAX(delay) AS delay, SUM(waiting) AS waiting, SUM(computes) AS computes FROM p GROUP BY host
), e AS (
    SELECT host, MIN(LEAST(cpu_cores, COALESCE(cpu_quota, cpu_cores))) AS cores FROM python.environment WHERE pid IN ($pids) AND cpu_cores IS NOT NULL GROUP BY host
)
-- What neighbours take is not theirs: they have to keep half of the processors busy by themselves.
SELECT CAST(NULL AS INT) AS rank, h.host AS seen, 'note' AS severity, round(h.workers) AS workers, e.cores, h.delay FROM h JOIN e ON h.host = e.host
WHERE h.workers >= 2 * e.cores AND (h.delay >= 0.3 OR h.waiting >= e.cores) AND h.computes >= 0.5 * e.cores
