-- rule: host-leak
-- family: memory
-- kind: trend
-- confidence: measured
-- needs: python.memory.rss
-- least: 30
-- growth: 5
-- also: leak, memory leak, rss
-- says: {who}: memory grows all the time: {first} to {last} MB, {slope} MB a step
-- do: find what is kept, such as losses with their graphs (keep loss.item()): probe eval "import gc, collections; print(collections.Counter(type(o).__name__ for o in gc.get_objects()).most_common(10))"
-- record: let it train for longer: it is measured ten times a second at most
SELECT rank, step AS x, rss AS y FROM python.memory WHERE $window AND device = 'cpu' AND step < $last AND rss IS NOT NULL
    -- Where inputs become larger, their activations do, too.
    AND pid NOT IN $larger_inputs
    -- A profiler keeps what it records until it is asked for that.
    AND pid NOT IN (SELECT pid FROM python.environment WHERE pid IN ($pids) AND torch_profiler)
