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
), whole AS (
    SELECT AVG(samples) AS samples, CASE WHEN COUNT(*) = COUNT(size) THEN AVG(size) END AS size FROM sized HAVING COUNT(*) = COUNT(samples)
), more AS (
    SELECT s.pid, CASE WHEN s.samples >= 1.1 * w.samples THEN s.samples ELSE s.size END AS amount,
        CASE WHEN s.samples >= 1.1 * w.samples THEN w.samples ELSE w.size END AS mean,
        CASE WHEN s.samples >= 1.1 * w.samples THEN 'samples' ELSE 'elements of inputs' END AS of
    FROM sized s CROSS JOIN whole w WHERE s.samples >= 1.1 * w.samples OR s.size >= 1.1 * w.size
), part AS (
    SELECT pid, rank, step, part, part_time AS cost FROM $part_times AS t WHERE $window AND rank IS NOT NULL AND part IN ('data', 'forward', 'backward')
), others AS (
    SELECT a.pid, a.step, a.part, median(b.cost) AS cost FROM part a JOIN part b ON a.step = b.step AND a.part = b.part AND a.rank <> b.rank
    WHERE a.pid IN (SELECT pid FROM more) GROUP BY a.pid, a.step, a.part
)
-- With as many samples as the ranks have in the mean it would take so much less, though not less than the others do. A thread that waits
-- for a processor waits longer the more it has to compute.
SELECT part.step, part.rank, part.part, part.cost, GREATEST(LEAST(part.cost, others.cost), part.cost * more.mean / more.amount) AS ref,
    more.amount, more.of, more.mean
FROM part JOIN more ON part.pid = more.pid JOIN others ON part.pid = others.pid AND part.step = others.step AND part.part = others.part
WHERE part.pid NOT IN $pipelined
