-- rule: paging
-- family: host
-- kind: fact
-- confidence: likely
-- needs: process.metrics.major_faults
-- explains: waits-for-a-processor, periodic-stall, irregular-stall, slow-for-a-while
-- also: swap, page faults, major faults, memory pressure, mmap
-- says: {who} waited for memory to be read from a disk: {faults} page faults a second in {share:%} of the seconds, in which steps take {slower} times as long
-- do: more memory or fewer workers, where process.metrics.swap grows; where data is mapped from files, a local disk or a copy in memory
-- record: let it train for longer: there is a row a second
WITH m AS (
    SELECT rank, pid, major_faults,
        (step - LAG(step) OVER w) / (CAST(CAST(ts AS BIGINT) - CAST(LAG(ts) OVER w AS BIGINT) AS DOUBLE) / 1e9) AS pace
    FROM process.metrics WHERE $window AND major_faults IS NOT NULL WINDOW w AS (PARTITION BY pid ORDER BY ts)
), g AS (
    SELECT rank, pid, COUNT(*) AS seconds, COUNT(*) FILTER (WHERE major_faults > 10) AS paging,
        AVG(major_faults) FILTER (WHERE major_faults > 10) AS faults,
        MEDIAN(pace) FILTER (WHERE major_faults > 10) AS paging_pace, MEDIAN(pace) FILTER (WHERE major_faults <= 10) AS usual_pace
    FROM m WHERE pace IS NOT NULL GROUP BY rank, pid
)
SELECT rank, 'major_faults' AS seen, paging, seconds, faults, paging / CAST(seconds AS DOUBLE) AS share,
    usual_pace / paging_pace AS slower,
    CASE WHEN paging * (1 - paging_pace / usual_pace) >= 0.1 * seconds THEN 'warn' ELSE 'note' END AS severity
FROM g WHERE paging >= 5 AND seconds - paging >= 5 AND paging >= 0.1 * seconds AND paging_pace > 0 AND usual_pace >= 1.2 * paging_pace
