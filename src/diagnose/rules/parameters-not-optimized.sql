-- rule: parameters-not-optimized
-- family: model
-- kind: fact
-- confidence: measured
-- needs: python.environment.unoptimized_parameters
-- also: frozen, unused parameters, does not learn, not learning, param_groups
-- says: {who}: {parameters} parameters, {name} first, get gradients and are in no optimizer: they never change, and their gradients are computed for nothing
-- do: make the optimizer after the last layer is added or replaced, and give it these parameters too; what is not to learn (a teacher, a frozen layer) gets requires_grad=False, or is called under torch.no_grad()
-- record: it is checked before the 32nd step of a torch optimizer
WITH e AS (
    SELECT * FROM $newest_environment
)
SELECT rank, 'unoptimized_parameters' AS seen,
    -- Who leaves out most of a model does so on purpose.
    CASE WHEN unoptimized_parameters < 0.5 * trainable_parameters THEN 'warn' ELSE 'note' END AS severity,
    unoptimized_parameters AS parameters, unoptimized_parameter AS name
FROM e WHERE unoptimized_parameters > 0
