-- rule: workers-leak
-- family: memory
-- kind: trend
-- confidence: measured
-- needs: python.memory.children_rss
-- least: 30
-- growth: 10
-- also: leak, memory leak, dataloader leak, copy-on-write, shared memory
-- says: {who}: the memory of its {children} child processes grows all the time: {first} to {last} MB together, {slope} MB a step
-- do: a data set that holds many Python objects (lists, dictionaries) is copied to each worker as it is read, because reading counts references: keep them in one array (numpy, pyarrow) or on disk; else look for what a worker keeps between batches
-- record: let it train for longer: it is measured once a second
WITH m AS (
    SELECT pid, rank, step, children, children_rss, rss FROM python.memory
    WHERE $window AND device = 'cpu' AND step < $last AND children > 0 AND children_rss IS NOT NULL
), usual AS (
    -- Pages that forked workers share with the process count in each worker, but exist once. A worker with more memory than the
    -- process also has memory of its own.
    SELECT pid, median(children) AS children FROM m GROUP BY pid HAVING MAX(children_rss / children) > MAX(rss)
)
-- New workers have not read anything yet.
SELECT m.rank, m.step AS x, m.children_rss AS y, m.children FROM m JOIN usual ON m.pid = usual.pid AND m.children = usual.children
