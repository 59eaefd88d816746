"""HolisticTraceAnalysis' sums of times, from activities of devices that are rounded and chosen as it does."""

import gzip
import math
import re
from typing import NamedTuple

from trace_figures.figures import Run, check, covered, us

WHOSE = "HTA"
MTIA = "hta/mtia_trace_single_rank/mtia_rank_0.json.gz"


class Activity(NamedTuple):
    """A row of gpu.kernels. Times are in whole microseconds."""

    begins: int
    ends: int
    launched: int | None
    category: str
    name: str
    stream: int


def activities(run: Run, file: str, without: int = -1) -> list[Activity]:
    """Those that HTA takes: without the last of several steps, without waits of the host (their stream is -1), and
    without what has no stream in the trace, which is on the stream called `without` here.

    HTA rounds a beginning up and an end down, and adds in floating point what the file says; so does this.
    """
    found = re.search(rb'"baseTimeNanoseconds":\s*(\d+)', gzip.decompress((run.traces / file).read_bytes()))
    base = int(found[1]) if found else 0

    def in_file(ns: int) -> float:
        return (ns - base) // 1000 + (ns - base) % 1000 / 1e3

    rows = run.query(
        f"SELECT CAST(ts AS BIGINT) AS ts, CAST(launch_ts AS BIGINT) AS launched, duration, category, name, stream, step "
        f"FROM gpu.kernels WHERE stream NOT IN (-1, {without}) AND {run.of(file)} ORDER BY ts"
    )
    if run.captures[file]["steps"] > 1:
        rows = [row for row in rows if row["step"] is not None and row["step"] < run.captures[file]["last_step"]]
    return [
        Activity(
            math.ceil(in_file(row["ts"])),
            math.floor(in_file(row["ts"]) + us(row["duration"])),
            None if row["launched"] is None else math.ceil(in_file(row["launched"])),
            row["category"],
            row["name"],
            row["stream"],
        )
        for row in rows
    ]


def breakdown(taken: list[Activity]) -> list[int]:
    """Idle, computing, doing something else, and all of it."""
    total = max(one.ends for one in taken) - min(one.begins for one in taken)
    busy = covered((one.begins, one.ends) for one in taken)
    computing = covered((one.begins, one.ends) for one in taken if one.category == "computation")
    return [total - busy, computing, busy - computing, total]


def temporal_breakdown(run: Run) -> None:
    """Section 4: what devices did from the first activity to the end of the last."""
    theirs = {
        "ns_resolution_trace/rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz": (
            [10113, 372150, 2371, 384634],
            [2.63, 96.75, 0.62],
        ),
        "negative_queue_length_values_check/rank0.json.gz": (
            [705853, 143836, 166865, 1016554],
            [69.44, 14.15, 16.41],
        ),
        "amd_trace/mi250_minitoy_train_ROCm6_2_kineto.json.gz": ([8780, 96, 35, 8911], [98.53, 1.08, 0.39]),
        "critical_path/end_to_end/simple_add/input/trace.json.gz": (
            [16414376, 10670, 39293, 16464339],
            [99.7, 0.06, 0.24],
        ),
        "critical_path/alexnet/benchmark_result_2869224_1695835535_trace.json.gz": (
            [12929684, 10630, 55697, 12996011],
            [99.49, 0.08, 0.43],
        ),
        "critical_path/cuda_event_sync/event_sync_trace.json.gz": ([207, 49, 7, 263], [78.71, 18.63, 2.66]),
        "with_gpu_user_annotation/step_based_trace_2543932.json.gz": ([7446, 290, 1, 7737], [96.24, 3.75, 0.01]),
    }
    for file, (times, shares) in theirs.items():
        ours = breakdown(activities(run, f"hta/{file}"))
        check(f"{file} idle, computing, other, total us", ours, times, WHOSE)
        percent = [round(100 * part / ours[3], 2) for part in ours[:3]]
        check(f"{file} idle, computing, other %", percent, shares, WHOSE)


def mtia(run: Run) -> None:
    """Section 3: a trace of MTIA, one step. 137 requests of DMA have no stream in it, but the thread 801."""
    taken = activities(run, MTIA, without=801)
    idle, computing, other, total = breakdown(taken)
    check("mtia idle us", idle, 5649476, "HTA, run")
    check("mtia total us", total, 13328071, "HTA, run")
    check("mtia computing us", computing, 7305597, WHOSE)
    for what, part, percent in [("idle", idle, 42.38), ("computing", computing, 54.81), ("other", other, 2.81)]:
        check(f"mtia {what} %", round(100 * part / total, 2), percent, WHOSE, within=0.01)
    # HTA's test calls the first row of its table by name, which is the sum of this kernel.
    for name, theirs in [("add-dtype_Float", 77283), ("dma_request", 400892)]:
        ours = sum(one.ends - one.begins for one in taken if one.name == name)
        check(f"mtia {name} us", ours, theirs, WHOSE)
    of_stream = [one for one in taken if one.stream == 1]
    waited = sum(
        one.begins - before.ends
        for before, one in zip(of_stream, of_stream[1:])
        if one.launched is not None and one.launched > before.ends
    )
    check("mtia stream 1 host_wait us, rounded", waited, 417937, WHOSE)
    view = run.query(f"SELECT host_wait, idle FROM gpu.idle_causes WHERE stream = 1 AND {run.of(MTIA)}")[0]
    check("mtia stream 1 host_wait us", us(view["host_wait"]), 417937, WHOSE, otherwise="whole")
    check("mtia stream 1 share of host_wait", round(view["host_wait"] / view["idle"], 2), 0.07, WHOSE)
    launch = run.query(
        f"SELECT duration, launch_duration, launch_delay FROM gpu.kernels WHERE correlation = 423 AND {run.of(MTIA)}"
    )
    for column, theirs in [("launch_duration", 435.2), ("duration", 124.768), ("launch_delay", 0.0)]:
        check(f"mtia 423 {column}", us(launch[0][column]) if launch else None, theirs, WHOSE, within=2)
