-- rule: double-precision
-- family: environment
-- kind: fact
-- confidence: likely
-- needs: python.environment.parameter_dtype
-- also: float64, double, dtype
-- says: {who} trains in double precision: the parameters are of {seen}, which takes at least twice the time and memory of float32
-- do: net.float() and data of float32 (what numpy makes is float64: torch.from_numpy(x).float()), unless the problem needs 16 digits
-- record: it is noted when a model is called
WITH e AS (
    SELECT * FROM $newest_environment
)
SELECT rank, parameter_dtype AS seen, CASE WHEN device <> 'cpu' THEN 'warn' ELSE 'note' END AS severity FROM e WHERE parameter_dtype LIKE '%float64%'
