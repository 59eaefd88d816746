"""The main thread stands still while hooks change, and only where it may."""

from __future__ import annotations

import os
import select
import threading
import time
from typing import Any, Callable

import pytest
import torch
from probe_agent import standstill
from recording_support import in_process
from torch import nn
from torch.nn.modules.module import register_module_module_registration_hook
from torch.optim.optimizer import register_optimizer_step_pre_hook

PATIENCE = 60.0


def spin_until(condition: Callable[[], object]) -> None:
    """Runs Python on the main thread meanwhile, as a training does."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline


class Asker(threading.Thread):
    """Asks for a standstill on a thread of its own."""

    def __init__(self, patience: float = PATIENCE) -> None:
        super().__init__(daemon=True)
        self.patience, self.worked, self.waited = patience, 0, -1.0  # type: tuple[float, int, float | None]

    def run(self) -> None:
        self.waited = standstill.during(self.work, self.patience)

    def work(self) -> None:
        self.worked += 1


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each point where the main thread was asked, whether it might be stopped there."""
    verdicts: list[bool] = []
    judge = standstill._StoppingPoint.is_good

    def is_good(point: Any) -> bool:
        verdicts.append(judge(point))
        return verdicts[-1]

    monkeypatch.setattr(standstill._StoppingPoint, "is_good", is_good)
    return verdicts


def test_it_is_not_within_a_step_of_an_optimizer(answers: list[bool]) -> None:
    asker = Asker()

    def hook(optimizer: Any, args: Any, kwargs: Any) -> None:
        asker.start()
        spin_until(lambda: len(answers) >= 3)
        assert not asker.worked

    handle = register_optimizer_step_pre_hook(hook)
    try:
        torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1).step()
    finally:
        handle.remove()
    spin_until(lambda: asker.worked)
    asker.join(PATIENCE)
    assert answers[-1] and not any(answers[:3])
    assert asker.worked == 1 and asker.waited is not None and asker.waited >= 0


def test_nothing_is_done_where_the_main_thread_runs_no_python(answers: list[bool]) -> None:
    hears, says = os.pipe()
    standstill._import_first()

    class Late(Asker):
        def run(self) -> None:
            with open(f"/proc/self/task/{os.getpid()}/syscall") as file:
                # select, pselect6; aarch64's pselect6.
                spin_until(lambda: file.seek(0) == 0 and file.read().startswith(("23 ", "270 ", "72 ")))
            super().run()
            os.write(says, b"over")

    asker = Late(0.2)
    asker.start()
    select.select([hears], [], [])
    spin_until(lambda: not asker.is_alive())
    os.close(hears)
    os.close(says)
    assert asker.waited is None and not asker.worked
    # The pending call came afterwards, and found that the thread had stopped waiting.
    assert not answers


def test_what_a_signal_handler_raises_reaches_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    judge, raised = standstill._StoppingPoint.is_good, []

    def is_good(point: Any) -> bool:
        if not raised:
            raised.append(True)
            raise KeyboardInterrupt
        return judge(point)

    monkeypatch.setattr(standstill._StoppingPoint, "is_good", is_good)
    asker = Asker()
    with pytest.raises(KeyboardInterrupt):
        asker.start()
        spin_until(lambda: asker.worked)
    spin_until(lambda: asker.worked)
    asker.join(PATIENCE)
    assert asker.waited is not None


def test_what_goes_wrong_in_the_work_is_the_askers() -> None:
    found: list[BaseException] = []

    def work() -> None:
        raise ValueError("no")

    def ask() -> None:
        try:
            standstill.during(work, PATIENCE)
        except ValueError as error:
            found.append(error)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    spin_until(lambda: found)
    thread.join(PATIENCE)
    assert str(found[0]) == "no"


def attached_and_detached_beside(round_of: Callable[[], None]) -> int:
    """The main thread waits for one that does rounds, while the agent is put in and taken out. Returns the rounds; -1 where
    that thread ended."""
    from probe_agent import agent

    rounds, over = 0, threading.Event()

    def work() -> None:
        nonlocal rounds
        while not over.is_set():
            round_of()
            rounds += 1

    working = threading.Thread(target=work, daemon=True)
    working.start()

    def often() -> None:
        for _ in range(4):
            said = agent.attach("x", "unix:/nonexistent", None, PATIENCE)
            assert said["state"] == "recording", said
            assert "refused" not in agent.detach(PATIENCE)
            agent.stop()
        over.set()

    threading.Thread(target=often, daemon=True).start()
    # Each of the four rounds waits for the other thread three times.
    deadline = time.monotonic() + 3 * PATIENCE
    while working.is_alive() and time.monotonic() < deadline:
        working.join(0.01)
    return rounds if over.is_set() else -1


def beside_steps() -> int:
    # Other programs have such hooks: the longer a hook takes, the longer torch is between two of them.
    register_optimizer_step_pre_hook(lambda optimizer, args, kwargs: time.sleep(0.002))
    register_optimizer_step_pre_hook(lambda optimizer, args, kwargs: None)
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)

    def step() -> None:
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()

    return attached_and_detached_beside(step)


def test_it_is_put_in_and_taken_out_while_another_thread_steps() -> None:
    assert in_process(beside_steps) > 10


def beside_constructors() -> int:
    register_module_module_registration_hook(lambda parent, name, child: time.sleep(0.002))
    register_module_module_registration_hook(lambda parent, name, child: None)
    return attached_and_detached_beside(lambda: nn.ModuleList([nn.Identity(), nn.Identity()]).append(nn.Identity()))


def test_it_is_put_in_and_taken_out_while_another_thread_makes_modules() -> None:
    assert in_process(beside_constructors) > 10


def test_it_is_not_where_a_module_is_put_into_another_one(answers: list[bool]) -> None:
    asker = Asker()

    def hook(parent: nn.Module, name: str, child: nn.Module) -> None:
        if not asker.is_alive():
            asker.start()
            spin_until(lambda: len(answers) >= 3)
            assert not asker.worked

    handle = register_module_module_registration_hook(hook)
    try:
        nn.Sequential(nn.Identity())
    finally:
        handle.remove()
    spin_until(lambda: asker.worked)
    asker.join(PATIENCE)
    assert answers[-1] and not any(answers[:3])
