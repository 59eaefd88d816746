"""Timing of calls, with a clock that only the calls move."""

from __future__ import annotations

import gc
import types

import pytest
from probe_agent.benchmark import timing


class Clock:
    """A stand-in for time.perf_counter, and calls of given durations."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.log, self.synchronized = 0.0, "", 0
        monkeypatch.setattr(timing, "time", types.SimpleNamespace(perf_counter=lambda: self.now))

    def call(self, name: str, *seconds: float) -> timing.Repeat:
        """A call that takes the first of the durations, then the second, and so on; the last for all further calls."""
        made = [0]

        def repeat(calls: int) -> None:
            self.log += name
            for _ in range(calls):
                self.now += seconds[min(made[0], len(seconds) - 1)]
                made[0] += 1

        return repeat

    def synchronize(self) -> None:
        self.synchronized += 1


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_slow_first_calls_are_warm_up(clock: Clock) -> None:
    slow = [1.0, 0.3, *(0.1 - 0.01 * i for i in range(6))]
    (found,) = timing.time_calls([clock.call("a", *slow, 0.02)], 10.0, clock.synchronize)
    assert set(round(each, 9) for each in found.samples) == {0.02}
    assert found.is_settled and found.calls_per_sample == 1 and found.warm_up_calls >= len(slow)
    assert clock.synchronized == 2 * (len(found.samples) + found.warm_up_calls)


def test_calls_that_never_settle_are_said_to(clock: Clock) -> None:
    faster = [1.0 * 0.9**i for i in range(200)]
    (found,) = timing.time_calls([clock.call("a", *faster)], 5.0, clock.synchronize)
    assert not found.is_settled


def test_two_are_timed_in_turn(clock: Clock) -> None:
    a, b = timing.time_calls([clock.call("a", 0.02), clock.call("b", 0.03)], 2.0, clock.synchronize)
    assert len(a.samples) == len(b.samples) > timing.MIN_SAMPLES
    taken = clock.log[-2 * len(a.samples) :]
    assert taken == ("abba" * len(a.samples))[: len(taken)]


def test_short_calls_share_a_sample(clock: Clock) -> None:
    (found,) = timing.time_calls([clock.call("a", 3e-6)], 0.5, clock.synchronize)
    assert 330 <= found.calls_per_sample <= 400
    assert all(abs(each - 3e-6) < 1e-12 for each in found.samples)
    assert 0.5 <= clock.now < 0.51


def test_what_takes_longer_than_the_time_has_three_samples(clock: Clock) -> None:
    (found,) = timing.time_calls([clock.call("a", 7.0)], 2.0, clock.synchronize)
    assert found.samples == [7.0] * timing.MIN_SAMPLES


def test_no_garbage_is_collected_meanwhile(clock: Clock) -> None:
    states = []
    call = clock.call("a", 0.1)
    timing.time_calls([lambda calls: (states.append(gc.isenabled()), call(calls))], 1.0, clock.synchronize)
    assert set(states) == {False} and gc.isenabled()
