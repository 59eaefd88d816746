-- rule: gpu-errors
-- family: device
-- kind: fact
-- confidence: measured
-- needs: gpu.metrics.uuid
-- also: xid, ecc, nvlink, row remapping, fallen off the bus, hardware
-- says: {seen}: {what}
-- do: {remedy}
-- record: the driver of a GPU reports it
WITH g AS (
    SELECT host, gpu, xid, ecc_uncorrected, CASE xid WHEN 48 THEN 'a memory error that ECC could not correct' WHEN 62 THEN 'its microcontroller halted'
        WHEN 63 THEN 'a row of its memory is to be replaced' WHEN 64 THEN 'a row of its memory could not be replaced' WHEN 74 THEN 'an error of NVLink'
        WHEN 79 THEN 'it has fallen off the bus' WHEN 92 THEN 'many memory errors that ECC corrected' WHEN 94 THEN 'a memory error that ended one process'
        WHEN 95 THEN 'a memory error that could have spread' WHEN 119 THEN 'its firmware does not answer' WHEN 120 THEN 'an error of its firmware' END AS meaning
    FROM gpu.metrics
), x AS (
    SELECT host, gpu, xid, MAX(meaning) AS meaning, COUNT(*) AS times FROM g WHERE xid IS NOT NULL GROUP BY host, gpu, xid
), e AS (
    SELECT host, gpu, MAX(ecc_uncorrected) - MIN(ecc_uncorrected) AS more FROM g GROUP BY host, gpu
)
SELECT CAST(NULL AS INT) AS rank, 'GPU ' || CAST(gpu AS VARCHAR) || ' of ' || host AS seen, CASE WHEN meaning IS NULL THEN 'note' ELSE 'warn' END AS severity,
    'the driver reports Xid ' || CAST(xid AS VARCHAR) || CASE times WHEN 1 THEN '' ELSE ' (' || CAST(times AS VARCHAR) || ' times)' END || COALESCE(': ' || meaning, '') AS what,
    CASE WHEN meaning IS NULL THEN 'NVIDIA''s list of Xid errors says what it means; most that are not named here are the program''s own, as an illegal address'
        ELSE 'take the GPU out of service, and look at dmesg and nvidia-smi -q: it is the hardware' END AS remedy
FROM x
UNION ALL
SELECT CAST(NULL AS INT), 'GPU ' || CAST(gpu AS VARCHAR) || ' of ' || host, 'warn', CASE more WHEN 1 THEN 'a memory error' ELSE CAST(more AS VARCHAR) || ' memory errors' END || ' that ECC could not correct',
    'take the GPU out of service, and look at dmesg and nvidia-smi -q: it is the hardware'
FROM e WHERE more > 0
