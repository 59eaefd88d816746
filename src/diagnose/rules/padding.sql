-- rule: padding
-- family: model
-- kind: time
-- parts: together
-- confidence: likely
-- needs: python.data_trace.padding
-- reduce: typical
-- saving: estimate
-- levels: 10, 40, 60
-- also: padded, pad, pad_sequence, padding_value, max_length, sequence length, lengths, bucketing, packing
-- says: {who}: {share:%} of an average batch of {dataset} is padding, which the model computes like the rest ({batches} batches were looked at)
-- do: pad each batch to its longest sample and not to a fixed length, put samples of similar length into one batch (sort or bucket them by length), or pack several samples into one sequence
-- record: agents of this version look at every eighth batch of a DataLoader, on the CPU
WITH looked AS (
    SELECT pid, dataset, AVG(padding) AS share, COUNT(*) AS batches, ROW_NUMBER() OVER (PARTITION BY pid ORDER BY COUNT(*) DESC, dataset) AS place
    FROM python.data_trace WHERE $window AND padding IS NOT NULL GROUP BY pid, dataset
), packed AS (
    -- Some models leave the padding out.
    SELECT DISTINCT pid FROM python.operator_counts WHERE $window AND (operator LIKE '%pack_padded%' OR operator LIKE '%nested%' OR operator LIKE '%varlen%')
)
SELECT p.step, p.rank, p.part, p.part_time AS cost, p.part_time * (1 - l.share) AS ref, l.share, l.batches, COALESCE(l.dataset, 'the loader') AS dataset
FROM $part_times AS p JOIN looked l ON p.pid = l.pid
WHERE p.part IN ('forward', 'backward') AND l.place = 1 AND l.batches >= 3 AND l.share >= 0.1 AND p.pid NOT IN (SELECT pid FROM packed)
