-- rule: rows-lost
-- family: record
-- kind: fact
-- confidence: measured
-- also: drops, dropped, incomplete
-- says: {who} lost {seen} of the rows of {table_name} ({why}), and the rules that need them are not decided
-- do: see probe.drops; where a ring or a buffer was full, probe config detail=auto records fewer modules
SELECT rank, concat(CAST(round(100 * share, 1) AS VARCHAR), ' %') AS seen, 'note' AS severity, table_name, why
FROM $rows_lost WHERE share > 0.01
