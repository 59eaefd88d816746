-- python.module_operators: One row per module, stage and operator of each capture: which operators a module's time goes to. A call counts for the innermost module that it ran in.
-- example: SELECT module, operator, calls, own, device_own FROM python.module_operators WHERE stage = 'forward' ORDER BY own DESC LIMIT 10
-- example: SELECT module, SUM(own) AS own, SUM(device_own) AS device_own FROM python.module_operators GROUP BY module ORDER BY own DESC LIMIT 10
SELECT
    run,                                          -- text: The run.
    capture,                                      -- text: Name of the capture.
    rank,                                         -- int: Global rank; NULL where the capture does not say.
    module,                                       -- text: Qualified name of the module, as in python.torch_trace; NULL outside of modules, and where the capture names none.
    stage,                                        -- text: forward, backward or step; NULL where it is not known.
    name AS operator,                             -- text: aten::addmm.
    COUNT(*) AS calls,                            -- bigint: Calls.
    SUM(duration) AS total,                       -- double, s: Host time, with the operators within.
    SUM(self_duration) AS own,                    -- double, s: Host time without operators, ranges and runtime calls directly within; adds up over operators and modules.
    SUM(device_duration) AS device_total,         -- double, s: Device activities launched within; NULL where the capture has none at all.
    SUM(device_self_duration) AS device_own,      -- double, s: Those that no operator within it launched; adds up over operators and modules.
    100 * SUM(self_duration) / NULLIF(SUM(SUM(self_duration)) OVER (PARTITION BY run, capture, rank, module, stage), 0) AS share -- double, %: own, of the own time of all operators of the module in this stage.
FROM python.operators WHERE kind = 'operator'
GROUP BY run, capture, rank, module, stage, name
