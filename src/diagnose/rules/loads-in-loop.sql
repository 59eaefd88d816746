-- rule: loads-in-loop
-- family: data
-- kind: time
-- part: data
-- confidence: measured
-- needs: python.data_trace.num_workers
-- persistence: 0.5
-- levels: 5, 10, 20
-- line: sampled
-- explains: rank-slow, periodic-stall, irregular-stall, slower-than-reference
-- also: loader, dataloader, data loading, num_workers
-- says: {who}: batches are made on the training thread (num_workers=0), and a worker would hand them over sooner
-- do: DataLoader(num_workers={workers}, persistent_workers=True){threads}: {cores} cores are available{iterable}
-- record: recorded where there is a DataLoader
WITH b AS (
    SELECT rank, pid, step, SUM(wait) AS wait, COUNT(*) AS batches FROM python.data_trace
    WHERE $window AND num_workers = 0 GROUP BY rank, pid, step
), cores AS (
    SELECT pid, cores, torch_threads, is_iterable,
        -- With two cores, of which torch computes on both, two workers and its threads would be in each other's way.
        CASE WHEN cores = 2 AND torch_threads > 1 THEN 1 ELSE 2 END AS workers
    FROM (
        SELECT pid, MAX(cpu_cores) AS cores, MAX(torch_threads) AS torch_threads, bool_or(sampler = '_InfiniteConstantSampler') AS is_iterable
        FROM python.environment WHERE pid IN ($pids) GROUP BY pid HAVING MAX(cpu_cores) >= 2
    )
), s AS (
    SELECT pid, step, duration - data_time AS rest, duration / GREATEST(duration - COALESCE(run_delay, 0), 0.02 * duration) AS longer FROM python.steps WHERE $window
), own AS (
    -- Torch runs the sampler on the training thread also where there are workers.
    SELECT cores.*, COALESCE(u.share, 0.0) AS sampler FROM cores LEFT JOIN $sampler_share AS u ON cores.pid = u.pid
), long AS (
    -- Tensors in memory take a few milliseconds to index: workers would save too little of that to be worth them.
    SELECT b.pid FROM b JOIN s ON b.pid = s.pid AND b.step = s.step GROUP BY b.pid HAVING median(b.wait / longer / batches) >= 0.003
)
SELECT b.step, b.rank, b.wait AS cost,
    -- Handing over a batch takes longer, too, while the thread waits for a processor.
    b.wait * sampler + GREATEST((1 - sampler) * b.batches * 0.0015 * longer, (1 - sampler) * b.wait / workers - rest) AS ref, own.cores AS cores, workers,
    CASE WHEN torch_threads > GREATEST(cores - workers, 1) THEN concat(', with torch.set_num_threads(', GREATEST(cores - workers, 1), ')') ELSE '' END
        AS threads,
    CASE WHEN is_iterable THEN '; of an IterableDataset each worker has all samples, unless it takes its part (torch.utils.data.get_worker_info)'
        ELSE '' END AS iterable
FROM b JOIN own ON b.pid = own.pid JOIN s ON b.pid = s.pid AND b.step = s.step
WHERE b.pid IN (SELECT pid FROM long)
