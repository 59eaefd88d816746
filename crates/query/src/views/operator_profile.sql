-- python.operator_profile: One row per operator or named range of each capture: calls, host and device time with and without what is within. The figures of torch.profiler's key_averages, which counts nested operators of the same name once.
-- example: SELECT name, calls, own, total, device_own FROM python.operator_profile ORDER BY own DESC LIMIT 10
-- example: SELECT name, SUM(device_own) AS device, SUM(calls) AS calls FROM python.operator_profile GROUP BY name ORDER BY device DESC NULLS LAST LIMIT 10
SELECT
    run,                                          -- text: The run.
    capture,                                      -- text: Name of the capture.
    rank,                                         -- int: Global rank; NULL where the capture does not say.
    kind,                                         -- text: operator or annotation.
    name,                                         -- text: aten::addmm.
    COUNT(*) AS calls,                            -- bigint: Calls.
    SUM(duration) AS total,                       -- double, s: Host time, with the operators within.
    SUM(self_duration) AS own,                    -- double, s: Host time without operators, ranges and runtime calls directly within; adds up over operators.
    AVG(duration) AS mean,                        -- double, s: One call, with the operators within.
    SUM(device_duration) AS device_total,         -- double, s: Device activities launched within; NULL where the capture has none at all.
    SUM(device_self_duration) AS device_own,      -- double, s: Those that no operator within it launched; adds up over operators.
    100 * SUM(self_duration) / NULLIF(SUM(SUM(self_duration)) OVER (PARTITION BY run, capture), 0) AS share, -- double, %: own, of the own time of all operators and ranges of the capture.
    100 * SUM(device_self_duration) / NULLIF(SUM(SUM(device_self_duration)) OVER (PARTITION BY run, capture), 0) AS device_share -- double, %: device_own, of that of all operators and ranges of the capture.
FROM python.operators
GROUP BY run, capture, rank, kind, name
