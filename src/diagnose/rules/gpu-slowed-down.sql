-- rule: gpu-slowed-down
-- family: device
-- kind: fact
-- confidence: measured
-- needs: gpu.metrics.throttle_reasons >= 20
-- also: throttling, throttle, thermal, temperature, clocks, power cap, power brake
-- says: {seen} lowered its clocks in {share:%} of the time in which it computed ({reasons}): {clock} MHz, where it had {most} MHz otherwise; {degrees} °C at the hottest
-- do: cooling, power supply and neighbours of that GPU; until then training on others, since every rank waits for the slowest
-- record: the driver of a GPU reports it once a second
WITH g AS (
    -- A cap on power is how a busy GPU works. The other reasons are not.
    SELECT host, gpu, sm_clock, temperature, throttle_reasons, regexp_like(throttle_reasons, 'thermal|hw_slowdown|power_brake') AS slowed
    FROM gpu.metrics WHERE throttle_reasons IS NOT NULL AND utilization >= 50
        AND ts BETWEEN (SELECT MIN(ts) FROM python.steps WHERE $window) AND (SELECT MAX(ts) FROM python.steps WHERE $window)
), s AS (
    SELECT host, gpu, AVG(CASE WHEN slowed THEN 1.0 ELSE 0.0 END) AS share, median(CASE WHEN slowed THEN sm_clock END) AS clock,
        approx_percentile_cont(sm_clock, 0.95) AS most, MAX(temperature) AS degrees, MAX(CASE WHEN slowed THEN throttle_reasons END) AS reasons
    FROM g GROUP BY host, gpu HAVING COUNT(*) >= 20
)
SELECT CAST(NULL AS INT) AS rank, 'GPU ' || CAST(gpu AS VARCHAR) || ' of ' || host AS seen, 'warn' AS severity, share, clock, most, degrees, reasons
FROM s WHERE share >= 0.05 AND clock < 0.9 * most
