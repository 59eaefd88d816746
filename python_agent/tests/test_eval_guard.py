"""A snippet beside training does not train, whichever layers record: here none does."""

from __future__ import annotations

import ctypes
import functools
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import torch
import torch.distributed as dist
from probe_agent.eval import guard
from probe_agent.eval.ended import SnippetEnded
from torch import nn
from torch.distributed import all_reduce

ALL_ON = {"forward": "tp_call", "optimizer": "step-hooks", "backward": "grad-hooks", "collectives": "pg_hooks"}


class World:
    """The objects of a small training."""

    def __init__(self) -> None:
        self.model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout())
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.loss = self.forward()
        self.x = torch.ones(3)

    def forward(self) -> torch.Tensor:
        loss: torch.Tensor = self.model(torch.ones(3, 4)).sum()
        return loss

    def state(self) -> list[Any]:
        tensors = [*self.model.state_dict().values(), *(p.grad for p in self.model.parameters()), self.x]
        copies = [None if tensor is None else tensor.tolist() for tensor in tensors]
        return [copies, {key: len(value) for key, value in self.optimizer.state.items()}]


@pytest.fixture
def world() -> Iterator[World]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield World()
    finally:
        dist.destroy_process_group()


def beside(run: Callable[[], object], layers: dict[str, str]) -> BaseException | None:
    """The exception of `run` on a guarded thread of its own."""
    raised: list[BaseException] = []
    problems: list[str] = []

    def thread() -> None:
        with guard.guarded(layers, problems.append):
            try:
                run()
            except BaseException as error:
                raised.append(error)

    snippet = threading.Thread(target=thread)
    snippet.start()
    snippet.join()
    assert problems == []
    return raised[0] if raised else None


TRAINS: dict[str, Callable[[World], object]] = {
    "module": lambda world: world.forward(),
    "part of one": lambda world: world.model[1](torch.ones(3, 4)),
    "optimizer": lambda world: world.optimizer.step(),
    "backward": lambda world: world.loss.backward(),
    "backward of a gradient": lambda world: torch.autograd.backward([world.loss], [torch.ones(())]),
    "grad": lambda world: torch.autograd.grad(world.loss, list(world.model.parameters())),
    "collective": lambda world: dist.all_reduce(world.x),
    "collective by its own name": lambda world: all_reduce(world.x),
    "barrier": lambda world: dist.barrier(),
    "objects": lambda world: dist.all_gather_object([None], 1),
    "new group": lambda world: dist.new_group([0]),
    "end of the group": lambda world: dist.destroy_process_group(),
}


@pytest.mark.parametrize("name", TRAINS)
def test_what_trains_is_refused_before_anything_is_done(world: World, name: str) -> None:
    before = world.state()
    raised = beside(lambda: TRAINS[name](world), {})
    assert isinstance(raised, RuntimeError) and str(raised) == guard.MESSAGE and "hint: --at step" in guard.MESSAGE
    assert world.state() == before
    # The graph is whole: training's own backward goes through it.
    world.loss.backward()
    world.optimizer.step()
    assert dist.get_world_size() == 1


READS: dict[str, Callable[[World], object]] = {
    "evaluation": lambda world: nn.Sequential(nn.Linear(4, 4), nn.Dropout()).eval()(torch.ones(1, 4)),
    "no gradients": lambda world: torch.no_grad()(world.model[0])(torch.ones(1, 4)),
    "numbers": lambda world: (world.x.tolist(), world.x.numpy(), world.x.mean().item(), repr(world.loss)),
    "arithmetic with gradients": lambda world: (world.model[0].weight * 2).sum().item(),
    "telling": lambda world: (dist.get_rank(), dist.get_backend(), dist.group.WORLD),
}


@pytest.mark.parametrize("name", READS)
def test_what_only_reads_runs(world: World, name: str) -> None:
    assert beside(lambda: READS[name](world), {}) is None


def test_training_goes_on_meanwhile_and_torch_is_as_it_was_afterwards(world: World) -> None:
    entries = [
        *((dist, name) for name in ("init_process_group", "new_group", "destroy_process_group")),
        *((dist.ProcessGroup, name) for name in ("allreduce", "barrier")),
        *((namespace, "_engine_run_backward") for namespace in (torch.autograd, torch.autograd.graph)),
    ]
    before = [vars(namespace)[name] for namespace, name in entries]
    inside, done = threading.Event(), threading.Event()

    def snippet() -> None:
        with guard.guarded({}, print):
            inside.set()
            done.wait()

    thread = threading.Thread(target=snippet)
    thread.start()
    try:
        inside.wait()
        assert [vars(namespace)[name] for namespace, name in entries] != before
        world.loss.backward()
        world.optimizer.step()
        world.forward().backward()
        dist.all_reduce(world.x)
        dist.barrier()
        assert world.x.tolist() == [1.0, 1.0, 1.0] and len(world.optimizer.state) == 4
    finally:
        done.set()
        thread.join()
    assert [vars(namespace)[name] for namespace, name in entries] == before


@pytest.mark.parametrize("first", [0, 1])
def test_guards_that_overlap_leave_torch_as_it_was(world: World, first: int) -> None:
    """Two snippets, of which either ends first: the other is still kept from training, and training goes on."""
    namespaces = (torch.autograd, torch.autograd.graph)
    before = [vars(namespace)["_engine_run_backward"] for namespace in namespaces]
    inside, done = [threading.Event(), threading.Event()], [threading.Event(), threading.Event()]
    refused: list[str] = []

    def snippet(number: int) -> None:
        with guard.guarded({}, print):
            inside[number].set()
            done[number].wait()
            try:
                world.forward().backward()
            except RuntimeError as error:
                refused.append(str(error))

    threads = [threading.Thread(target=snippet, args=(number,)) for number in (0, 1)]
    try:
        for number, thread in enumerate(threads):
            thread.start()
            inside[number].wait()
        # One function in both namespaces, as torch has it: recording would be put in around it.
        assert len({vars(namespace)["_engine_run_backward"] for namespace in namespaces} | set(before)) == 2
        for number in (first, 1 - first):
            done[number].set()
            threads[number].join()
            world.forward().backward()
    finally:
        for event, thread in zip(done, threads):
            event.set()
            if thread.is_alive():
                thread.join()
    assert refused == [guard.MESSAGE] * 2
    assert [vars(namespace)["_engine_run_backward"] for namespace in namespaces] == before


def test_where_recording_guards_nothing_is_put_in(world: World) -> None:
    engine, call = torch.autograd.graph._engine_run_backward, vars(dist.ProcessGroup)["allreduce"]
    seen: list[bool] = []

    def looks() -> None:
        assert torch.autograd.graph._engine_run_backward is engine and vars(dist.ProcessGroup)["allreduce"] is call
        seen.append(bool(torch.overrides._get_current_function_mode_stack()))

    assert beside(looks, ALL_ON) is None
    assert seen == [False]


class _Trigger:
    """When it is freed, SnippetEnded is sent to a thread, by no function in Python that could receive it itself."""


_send = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_ulong, ctypes.py_object, ctypes.py_object)(
    ("PyThreadState_SetAsyncExc", ctypes.pythonapi)
)


def _end_at(instruction: int, refused: Any) -> bool:
    """Uses a guard on the calling thread and ends it at this instruction of the guard. False where it has fewer."""
    trigger: _Trigger | None = _Trigger()
    kept = weakref.ref(trigger, functools.partial(_send, threading.get_ident(), SnippetEnded))
    reached = 0

    def trace(frame: Any, event: str, argument: object) -> Any:
        nonlocal trigger, reached
        if not frame.f_code.co_filename.endswith(("eval/guard.py", "contextlib.py")):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            reached += 1
            if reached == instruction:
                sys.settrace(None)
                # This is no call, after which Python would raise it in here. It is raised at the guard's next call or loop.
                trigger = None
                return None
        return trace

    try:
        sys.settrace(trace)
        with ExitStack() as stack:
            stack.enter_context(guard.refused(refused, "talk"))
    except SnippetEnded:
        pass
    finally:
        sys.settrace(None)
    guard.end_of_snippet()
    return kept() is None


def _note_end_at(instruction: int, refused: Any, results: list[bool]) -> None:
    results.append(_end_at(instruction, refused))


def test_a_guard_that_is_ended_at_any_instruction_refuses_nothing_afterwards() -> None:
    class Group:
        @staticmethod
        def talk() -> str:
            return "training"

    talk = Group.talk
    instruction, goes_on = 0, True
    while goes_on:
        instruction += 1
        results: list[bool] = []
        # A thread each: what is sent after the end must not reach the next one.
        thread = threading.Thread(target=_note_end_at, args=(instruction, Group, results))
        thread.start()
        thread.join()
        goes_on = bool(results and results[0])
        assert guard._lock.acquire(blocking=False), instruction
        guard._lock.release()
        assert not guard._refusals and Group.talk is talk, instruction
    assert instruction > 100
