-- rule: slower-and-slower
-- family: regression
-- kind: trend
-- confidence: measured
-- needs: python.steps.cpu_time
-- least: 60
-- growth: 10
-- also: drift
-- says: {who}: a step takes more and more processor time: {first:ms}, then {last:ms}
-- do: find what grows with the steps and is gone through in each of them, such as a history that is kept: compare two flame graphs (probe flamegraph), early and late
-- record: agents of this version measure it on Linux
SELECT rank, step AS x, cpu_time AS y FROM python.steps WHERE $window AND cpu_time IS NOT NULL
    -- Larger inputs take more time, as they should.
    AND pid NOT IN $larger_inputs
