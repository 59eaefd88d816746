-- rule: unused-parameters
-- family: communication
-- kind: fact
-- confidence: likely
-- needs: python.environment.find_unused_parameters
-- also: find_unused_parameters, DDP options, static_graph
-- says: {who}: DistributedDataParallel walks the graph of every forward pass for parameters without a gradient (find_unused_parameters=True)
-- do: leave it out if every parameter gets a gradient (torch warns about it); if the same ones never do, static_graph=True
-- record: it is noted of a model in DistributedDataParallel
WITH e AS (
    SELECT * FROM $newest_environment
)
SELECT rank, 'find_unused_parameters' AS seen, 'note' AS severity FROM e
WHERE find_unused_parameters AND static_graph IS NOT TRUE
