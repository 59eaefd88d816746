"""How long calls take: warmed up, in samples that are long enough for the clock, two of them in turn."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

#: Seconds that one sample takes at least: shorter calls are repeated within it.
MIN_SAMPLE = 0.001
MAX_CALLS_PER_SAMPLE = 10_000
#: Samples of a window of warm-up. It is over when a window's median is not below this share of the last one's.
WINDOW = 5
SETTLED = 0.95
#: Share of the time that warm-up may take.
WARM_UP_SHARE = 0.4
MIN_SAMPLES = 3
MAX_SAMPLES = 1000

#: Makes the call this many times.
Repeat = Callable[[int], object]


class Timing(NamedTuple):
    """The times of one of the calls."""

    #: Seconds a call, a value a sample, in the order in which they were taken.
    samples: list[float]
    calls_per_sample: int
    #: Calls before the samples.
    warm_up_calls: int
    #: Whether the calls had stopped getting faster before the samples.
    is_settled: bool


def time_calls(calls: list[Repeat], seconds: float, synchronize: Callable[[], object]) -> list[Timing]:
    """Times `calls` for about `seconds` in all; takes at least MIN_SAMPLES of each, however long that takes.

    Two calls are sampled in turn, in an order that changes each time, so that other load on the machine affects both.
    """
    began = time.perf_counter()
    with _without_garbage_collection():
        share = seconds * WARM_UP_SHARE / len(calls)
        warmed = [_warm_up(call, share, synchronize) for call in calls]
        samples: list[list[float]] = [[] for _ in calls]
        order = list(range(len(calls)))
        while len(samples[0]) < MAX_SAMPLES:
            if len(samples[0]) >= MIN_SAMPLES and time.perf_counter() - began >= seconds:
                break
            for index in order:
                samples[index].append(_sample(calls[index], warmed[index][0], synchronize))
            order.reverse()
    return [Timing(taken, *how) for taken, how in zip(samples, warmed)]


def _warm_up(call: Repeat, seconds: float, synchronize: Callable[[], object]) -> tuple[int, int, bool]:
    """Warms up. Returns the calls that a sample needs, the calls that were made, and whether they had stopped getting faster."""
    began = time.perf_counter()
    per_sample, made = 1, 0
    while per_sample < MAX_CALLS_PER_SAMPLE:
        made += per_sample
        took = _sample(call, per_sample, synchronize)
        enough = round(MIN_SAMPLE / max(took, 1e-9)) + 1 if took < MIN_SAMPLE else 1
        if enough <= per_sample:
            break
        # The first calls are slower than those that follow, so the number grows by at most ten times.
        per_sample = min(enough, 10 * per_sample, MAX_CALLS_PER_SAMPLE)
    before = None
    while time.perf_counter() - began < seconds:
        median = statistics.median(_sample(call, per_sample, synchronize) for _ in range(WINDOW))
        made += WINDOW * per_sample
        if before is not None and median >= SETTLED * before:
            return per_sample, made, True
        before = median
    return per_sample, made, False


def _sample(call: Repeat, calls: int, synchronize: Callable[[], object]) -> float:
    """Seconds a call."""
    synchronize()
    began = time.perf_counter()
    call(calls)
    synchronize()
    return (time.perf_counter() - began) / calls


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
