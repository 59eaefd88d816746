-- rule: calls-without-backward
-- family: host
-- kind: time
-- part: forward
-- confidence: measured
-- needs: python.steps.micro_steps
-- record: agents record it with each step
-- gate: times >= 3
-- levels: 5, 101, 101
-- saving: ceiling
-- line: sampled
-- explains: periodic-stall, irregular-stall
-- also: generate, generation, sampling, rollout, rollouts, inference, no_grad
-- says: {who} calls the model {more} times more in {times} of these steps, without a longer backward pass: training waits for that (generation, playing, evaluation)
-- do: call it once for many inputs in place of one by one, less often, or on another process; in evaluation mode (model.eval()) and under torch.no_grad(), if it is not
WITH s AS (
    SELECT *, median(micro_steps) OVER pp AS calls, median(forward_time) OVER pp AS forward, median(backward_time) OVER pp AS backward
    FROM python.steps WHERE $window AND kind IS DISTINCT FROM 'call' WINDOW pp AS (PARTITION BY pid)
), l AS (
    SELECT *, CASE WHEN micro_steps >= calls + 2 AND micro_steps >= 2 * calls AND backward_time <= 1.5 * backward AND backward > 0 THEN 1 END AS extra FROM s
)
SELECT step, rank, forward + CASE WHEN extra = 1 THEN GREATEST(forward_time - forward, 0.0) ELSE 0.0 END AS cost, forward AS ref,
    COUNT(extra) OVER (PARTITION BY pid) AS times, median(CASE WHEN extra = 1 THEN micro_steps - calls END) OVER (PARTITION BY pid) AS more
FROM l
