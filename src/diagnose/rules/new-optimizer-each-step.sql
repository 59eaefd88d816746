-- rule: new-optimizer-each-step
-- family: model
-- kind: fact
-- confidence: measured
-- needs: python.environment.optimizers_gone
-- also: momentum, Adam, optimizer state, does not learn, not learning
-- says: {who} made a new optimizer for {gone} of {steps} steps: each new {name} starts without momentum and averages of gradients
-- do: make the optimizer once, before the loop; to change the learning rate, use a scheduler, or set param_groups[0]['lr'] of the same optimizer
-- record: it is checked before the 32nd step of a torch optimizer
WITH e AS (
    SELECT * FROM $newest_environment
)
SELECT rank, 'optimizers_gone' AS seen,
    -- SGD may be without momentum, and LBFGS makes many evaluations in one step: they may lose nothing.
    CASE WHEN optimizer IN ('SGD', 'LBFGS') THEN 'note' ELSE 'warn' END AS severity,
    optimizers_gone AS gone, optimizer_steps AS steps, COALESCE(optimizer, 'optimizer') AS name
-- An outer optimizer of meta-learning steps as often as the inner ones that it outlives.
FROM e WHERE optimizers_gone >= 0.8 * optimizer_steps
