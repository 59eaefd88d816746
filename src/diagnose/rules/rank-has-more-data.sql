-- rule: rank-has-more-data
-- family: communication
-- kind: time
-- parts: together
-- confidence: likely
-- needs: python.steps.samples
-- persistence: 0.75
-- reduce: typical
-- explains: rank-slow, slower-than-reference
-- also: uneven data, uneven batches, more data, more samples, imbalance, straggler, stragglers
-- says: {who} trains with {amount} {of} in a step, and the ranks have {mean} on average: the others wait for it
-- do: spread samples evenly: the same batch size on every rank, DistributedSampler(drop_last=True), or a sampler that gives each rank as much to do, of long sequences too
-- record: it is known for inputs whose first dimension is the batch
WITH n AS (
    SELECT pid, rank, median(samples) AS samples FROM python.steps WHERE $window AND rank IS NOT NULL GROUP BY pid, rank
), sized AS (
    -- Longer sequences are more data too.
    SELECT n.pid, n.rank, n.samples, input.size FROM n
    LEFT JOIN (SELECT pid, median(size) AS size FROM $input_size AS sizes GROUP BY pid) AS input ON n.pid = input.pid
), compared AS (
    -- The means are NULL where a rank's value is not known.
    SELECT pid, samples, size, CASE WHEN COUNT(*) OVER () = COUNT(samples) OVER () THEN AVG(samples) OVER () END AS mean_samples,
        CASE WHEN COUNT(*) OVER () = COUNT(samples) OVER () AND COUNT(*) OVER () = COUNT(size) OVER () THEN AVG(size) OVER () END AS mean_size
    FROM sized
), more AS (
    SELECT pid, CASE WHEN samples >= 1.1 * mean_samples THEN samples ELSE size END AS amount,
        CASE WHEN samples >= 1.1 * mean_samples THEN mean_samples ELSE mean_size END AS mean,
        CASE WHEN samples >= 1.1 * mean_samples THEN 'samples' ELSE 'elements of inputs' END AS of
    FROM compared WHERE samples >= 1.1 * mean_samples OR size >= 1.1 * mean_size
), part AS (
    SELECT pid, rank, step, part, part_time AS cost FROM $part_times AS t WHERE $window AND rank IS NOT NULL AND part IN ('data', 'forward', 'backward')
)
-- With as many samples as the ranks have in the mean it would take so much less, though not less than the others do. A thread that waits
-- for a processor waits longer the more it has to compute.
SELECT a.step, a.rank, a.part, a.cost, GREATEST(LEAST(a.cost, median(b.cost)), a.cost * more.mean / more.amount) AS ref,
    more.amount, more.of, more.mean
FROM part a JOIN more ON a.pid = more.pid JOIN part b ON a.step = b.step AND a.part = b.part AND a.rank <> b.rank
WHERE a.pid NOT IN $pipelined GROUP BY a.step, a.rank, a.part, a.cost, more.amount, more.of, more.mean
