"""XPlane traces."""

import csv
import json

from trace_figures.figures import Run, check, us


def xplane(run: Run) -> None:
    """Section 7: TensorFlow of 2020, JAX on a GPU, and TPUs."""
    whose = "TraceLens, perf_report_csvs"
    jax, tpu, worker = (f"capture LIKE '{name}%'" for name in ("chi-mi300x-013", "tpu_inference_2", "gpu_multi_worker"))

    def one(sql: str) -> dict:
        rows = run.query(sql)
        return rows[0] if rows else {}

    counts = one(
        f"SELECT COUNT(*) FILTER (WHERE kind = 'kernel') AS kernels, COUNT(*) FILTER (WHERE kind = 'memcpy') AS copies, COUNT(*) FILTER (WHERE kind = 'kernel' AND operator LIKE 'cudnn-conv%') AS conv FROM gpu.kernels WHERE {jax}"
    )
    check("jax kernels", counts["kernels"], 25, "the file")
    check("jax copies", counts["copies"], 53, "the file")
    check("jax kernels of convolutions", counts["conv"], 10, "TraceLens, tests/test_jax_conv_analysis.py")
    check("jax other kernels", counts["kernels"] - counts["conv"], 15, "TraceLens, tests/test_jax_conv_analysis.py")
    # The time in which any of a device's activities ran.
    busy = run.query(
        f"""WITH activity AS (
            SELECT device, CAST(ts AS BIGINT) AS begins, CAST(ts AS BIGINT) + CAST(ROUND(duration * 1e9) AS BIGINT) AS ends
            FROM gpu.kernels WHERE {jax}
        ), edge AS (
            SELECT device, begins AS at, 1 AS change FROM activity UNION ALL SELECT device, ends, -1 FROM activity
        ), running AS (
            SELECT device, at, SUM(change) OVER (PARTITION BY device ORDER BY at, change DESC ROWS UNBOUNDED PRECEDING) AS running,
                LEAD(at) OVER (PARTITION BY device ORDER BY at, change DESC) - at AS length FROM edge
        ) SELECT device, SUM(CASE WHEN running > 0 THEN length ELSE 0 END) / 1e6 AS busy, SUM(length) / 1e6 AS total
          FROM running GROUP BY device ORDER BY device"""
    )
    theirs = {0: ("copies", 0.889028, 26.978700, 27.867728), 7: ("computation", 3.586493, 12.174808, 15.761301)}
    check("jax devices", [row["device"] for row in busy], sorted(theirs), whose)
    for row in busy:
        what, time, idle, total = theirs[row["device"]]
        within = 6e-5  # both ends of 53 activities are in whole nanoseconds
        check(f"jax GPU:{row['device']} {what} ms", row["busy"], time, whose, within)
        check(f"jax GPU:{row['device']} idle ms", row["total"] - row["busy"], idle, whose, within)
        check(f"jax GPU:{row['device']} total ms", row["total"], total, whose, within)
    names = {row["name"]: row for row in run.query(f"SELECT name, calls, total FROM gpu.kernel_profile WHERE {jax}")}
    summary = run.traces / "jax_mi300_legacy" / "perf_report_csvs" / "kernel_launchers_summary.csv"
    with summary.open() as text:
        for row in csv.DictReader(text):
            mine = names.get(row["name"], {})
            check(f"jax {row['name'][:40]} calls", mine.get("calls"), int(row["Count"]), whose)
            check(
                f"jax {row['name'][:40]} us",
                us(mine.get("total")),
                float(row["total_direct_kernel_time_sum"]),
                whose,
                0.006,
            )
    whose = "the file"
    without = one(f"SELECT without_launch AS n FROM python.captures WHERE {jax}")
    check("jax activities without a launch", without["n"], 0, whose)
    operations = one(f"SELECT COUNT(*) AS n, SUM(duration) * 1e3 AS ms FROM gpu.kernels WHERE device = 0 AND {tpu}")
    check("tpu XLA Ops of TPU:0", operations["n"], 1504, whose)
    check("tpu XLA Ops of TPU:0 ms", operations["ms"], 78784.928, whose, within=0.002)
    reasons = json.loads(one(f"SELECT reasons FROM python.captures WHERE {tpu}")["reasons"])
    programs = reasons.get("run of a program, which is in the module of its activities")
    check("tpu XLA Modules of four cores", programs, 105 + 3 * 103, whose)
    outside = one(f"SELECT COUNT(*) AS n FROM gpu.kernels WHERE module IS NULL AND {tpu}")
    check("tpu operations in no program", outside["n"], 0, whose)
    stream = one(f"SELECT COUNT(*) AS n FROM gpu.kernels WHERE device = 4 AND stream = 134 AND {worker}")
    check("gpu_multi_worker GPU:4 stream 134", stream["n"], 665, whose)
    steps = run.query(f"SELECT steps, first_step, last_step FROM python.captures WHERE {worker}")
    check("gpu_multi_worker steps", [tuple(row.values()) for row in steps], [(1, 0, 0)], whose)
    of_step = one(f"SELECT COUNT(*) AS n FROM gpu.kernels WHERE device = 4 AND stream = 134 AND step = 0 AND {worker}")
    check("gpu_multi_worker GPU:4 stream 134 in step 0", of_step["n"], 665, whose)
    for row in run.query(
        "SELECT capture, events, operators + kernels + launches + frames + left_out AS told FROM python.captures"
    ):
        check(f"{row['capture']} events that became rows or are counted", row["told"], row["events"], whose)
