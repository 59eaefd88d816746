-- rule: device-leak
-- family: memory
-- kind: trend
-- confidence: measured
-- needs: python.memory.allocated
-- least: 48
-- growth: 2
-- also: leak, memory leak, cuda out of memory, oom, gpu memory
-- says: {who}: what tensors hold on the GPU grows all the time: {first} to {last} MB, {slope} MB a step
-- do: find what is kept from one step to the next, such as losses or outputs that are not copied (a detached slice still holds the whole tensor: .clone(), or loss.item()): probe capture --memory says by which lines blocks were allocated
-- record: it is recorded where training is on a GPU
SELECT rank, step AS x, SUM(allocated) AS y FROM python.memory WHERE $window AND device <> 'cpu' AND allocated IS NOT NULL
    -- Where inputs become larger, what is kept of them does, too.
    AND pid NOT IN $larger_inputs
GROUP BY pid, rank, step
