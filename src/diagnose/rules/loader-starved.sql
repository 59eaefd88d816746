-- rule: loader-starved
-- family: data
-- kind: time
-- part: data
-- confidence: measured
-- needs: python.data_trace.queue_depth
-- gate: behind >= 0.3
-- explains: rank-slow, periodic-stall, irregular-stall, slower-than-reference
-- also: loader, dataloader, data loading, workers, num_workers
-- says: {who}: the loader does not keep up: when a batch was asked for, {ready:%} of those requested from its {workers} were ready{busy}{took}
-- do: {remedy}
-- record: recorded where a DataLoader has workers
WITH s AS (
    SELECT pid, step, duration, COALESCE(run_delay, 0) AS delay, cpu_time, duration - data_time AS rest FROM python.steps WHERE $window
), trains AS (
    -- The share of the time that training itself needs, beside waiting for batches and for a processor.
    SELECT pid, SUM(GREATEST(rest - delay, LEAST(COALESCE(cpu_time, rest), rest), 0)) / SUM(duration) AS share
    FROM s GROUP BY pid HAVING SUM(duration) > 0
), b AS (
    -- A worker that is not behind has made all batches that were requested of it but the one at hand. Whether the queue is empty
    -- says less: where one worker is waited for, the others catch up, and their batches are in the queue.
    SELECT d.rank, d.pid, d.step, d.wait, d.queue_depth, d.tasks_outstanding, d.num_workers, s.duration, s.delay,
        CASE WHEN d.queue_depth = 0 OR 2 * d.queue_depth < d.tasks_outstanding THEN 1.0 ELSE 0.0 END AS behind
    FROM python.data_trace d JOIN s ON d.pid = s.pid AND d.step = s.step
    WHERE d.num_workers > 0 AND d.batch_index >= d.num_workers * d.prefetch_factor
), ready AS (
    -- Each worker may have one batch that counts and is not sent yet, so only where there are more is one there for certain.
    SELECT pid, approx_percentile_cont(wait, 0.1) FILTER (WHERE behind = 0 AND queue_depth > num_workers) AS wait,
        SUM(queue_depth) / CAST(SUM(tasks_outstanding) AS DOUBLE) AS share
    FROM b GROUP BY pid
), used AS (
    -- How much of a processor a worker used, and how long it was ready without one; what all read from disks.
    SELECT pid, SUM(data_workers_percent) / SUM(data_workers) AS percent, AVG(data_workers_disk_read_bytes) / 1e6 AS disk,
        COALESCE(SUM(data_workers_run_delay) / SUM(data_workers), 0) / 100 AS delay
    FROM process.metrics WHERE $window AND data_workers_percent IS NOT NULL GROUP BY pid
), loads AS (
    -- How long workers took to load a batch, where that was measured.
    SELECT pid, '; it took a worker ' || CAST(round(1000 * AVG(fetch_time), 1) AS VARCHAR) || ' ms to load a batch on average' AS took
    FROM python.data_trace WHERE $window AND num_workers > 0 AND fetch_time IS NOT NULL GROUP BY pid
), worker AS (
    SELECT ready.pid, ready.wait, ready.share, delay, loads.took, COALESCE(percent / 100 + delay, 1) AS active,
        -- The share of the time that would still be waited for if none of them waited for a processor: a worker computes for
        -- longer than the step takes without its batches.
        CASE WHEN percent > 0 THEN GREATEST(1 - trains.share / (percent / 100), 0) ELSE 0 END AS slower,
        '; each worker used ' || CAST(CAST(round(percent) AS BIGINT) AS VARCHAR) || ' % of a processor'
            || CASE WHEN delay >= 0.1 THEN ' and waited for one '
                || CAST(CAST(round(100 * delay) AS BIGINT) AS VARCHAR) || ' % of the time' ELSE '' END
            || CASE WHEN disk >= 1 THEN '; together they read '
                || CAST(CAST(round(disk) AS BIGINT) AS VARCHAR) || ' MB/s from disks' ELSE '' END AS busy,
        CASE WHEN delay >= 0.3 AND percent / 100 + delay >= 0.8
            THEN 'a faster __getitem__ or collate_fn, or more processors; not more workers: those that are there always have work and wait for a processor'
            WHEN percent >= 80
            THEN 'a faster __getitem__ or collate_fn, which keeps the workers busy all the time; more workers (num_workers) if processors are free'
            WHEN percent / 100 + delay < 0.3
            THEN 'more workers (num_workers): they mostly wait, for files, the network, a lock or in sleep; or data that is closer (a local disk, a cache, larger files)'
            ELSE 'more workers (num_workers), or a faster __getitem__ and collate_fn' END AS remedy
    FROM ready JOIN trains ON ready.pid = trains.pid LEFT JOIN used ON ready.pid = used.pid
        LEFT JOIN loads ON ready.pid = loads.pid
)
SELECT b.step, b.rank, SUM(b.wait) AS cost,
    -- For that share of the time neighbours made the workers wait, not the loader, unless they compute for too long anyway.
    COUNT(*) * COALESCE(MAX(worker.wait), 0.0005) + LEAST(COALESCE(MAX(worker.delay), 0) * MAX(b.duration),
        GREATEST(SUM(b.wait) - COALESCE(MAX(worker.slower), 0) * MAX(b.duration), 0)) AS ref,
    -- A batch counts before its worker has sent it, which takes long where collate_fn keeps the interpreter, and the worker busy. The
    -- training thread may wait for a processor, too. Where workers have nothing to do, what takes long is to hand a batch over.
    AVG(CASE WHEN b.behind = 1 OR worker.active >= 0.4 AND b.wait - b.delay >= GREATEST(2 * COALESCE(worker.wait, 0.0005), 0.002) THEN 1.0 ELSE 0.0 END) AS behind, MAX(worker.share) AS ready, MAX(b.num_workers) AS num_workers,
    concat(CAST(MAX(b.num_workers) AS VARCHAR), CASE WHEN MAX(b.num_workers) = 1 THEN ' worker' ELSE ' workers' END) AS workers,
    COALESCE(MAX(worker.busy), '') AS busy, COALESCE(MAX(worker.took), '') AS took, MAX(worker.remedy) AS remedy
FROM b JOIN worker ON b.pid = worker.pid GROUP BY b.step, b.rank
