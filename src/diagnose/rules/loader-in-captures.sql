-- rule: loader-in-captures
-- family: capture
-- kind: fact
-- confidence: likely
-- needs: python.step_categories.total
-- explains: device-idle
-- also: dataloader, data loader, starved, input bound
-- says: {who}: {share:%} of the time of captured steps is spent waiting for the DataLoader
-- do: more workers (num_workers), or a faster __getitem__ and collate_fn; of a live run, probe diagnose --suspect loader-starved says which
-- record: probe capture, or probe import of a trace with ProfilerSteps
SELECT s.rank, 'data' AS seen, CASE WHEN SUM(s.dataloader) >= 0.25 * SUM(s.total) THEN 'warn' ELSE 'note' END AS severity,
    SUM(s.dataloader) / SUM(s.total) AS share
FROM python.step_categories s JOIN $captures AS c ON s.run = c.run AND s.capture = c.capture
GROUP BY s.run, s.rank, s.capture HAVING SUM(s.total) > 0 AND SUM(s.dataloader) >= 0.1 * SUM(s.total)
