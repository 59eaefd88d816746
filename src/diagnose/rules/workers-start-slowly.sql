-- rule: workers-start-slowly
-- family: data
-- kind: fact
-- confidence: likely
-- needs: python.data_trace.num_workers
-- also: slow start, spawn, worker_init_fn
-- says: {who} waited {first_wait} s for the first batch of its {workers} new workers ({times} times), and for most others less than {usual} s
-- do: make __init__ and worker_init_fn of the data set cheaper, and pickle less for the workers (multiprocessing_context='fork', where that is safe); persistent_workers=True starts them once
-- record: recorded where a DataLoader has workers
WITH b AS (
    SELECT pid, rank, batch_index, wait, num_workers, epoch_starts FROM (
        SELECT pid, rank, batch_index, wait, num_workers, persistent_workers,
            SUM(CASE WHEN batch_index = 0 THEN 1 ELSE 0 END) OVER (PARTITION BY pid, dataset ORDER BY ts) AS epoch_starts
        FROM python.data_trace WHERE pid IN ($pids) AND num_workers > 0 AND batch_index IS NOT NULL
    ) WHERE batch_index > 0 OR epoch_starts = 1 OR NOT persistent_workers
), n AS (
    SELECT pid, rank, MAX(num_workers) AS workers, SUM(CASE WHEN batch_index = 0 THEN 1 ELSE 0 END) AS times,
        median(CASE WHEN batch_index = 0 THEN wait END) AS first_wait,
        -- A worker needs so long for a batch where all of them are waited for.
        approx_percentile_cont(CASE WHEN batch_index > 0 THEN wait END, 0.9) AS usual
    FROM b GROUP BY pid, rank HAVING COUNT(*) >= 40
)
SELECT rank, 'first batch' AS seen, 'note' AS severity, first_wait, workers, times, usual FROM n
WHERE first_wait >= 10 AND first_wait >= 10 * usual * workers
