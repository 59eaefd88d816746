"""A look at the variables of a function that runs leaves nothing behind: the function, its variables and what it had of them."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping
from typing import Any

import probe_agent.torch  # noqa: F401  (the native half)
from probe_agent.eval import namespace


class Big:
    """An object that a step has, and frees."""


def own(variables: dict[str, Any]) -> set[str]:
    """Without what pytest puts between them."""
    return {name for name in variables if not name.startswith("@")}


def look() -> dict[str, Any]:
    """The names of a snippet beside this thread, as another thread finds them."""
    found: list[dict[str, Any]] = []
    me = threading.get_ident()
    thread = threading.Thread(target=lambda: found.append(namespace.snapshot(me)))
    thread.start()
    thread.join()
    return found[0]


def test_what_was_looked_at_is_let_go_of() -> None:
    alive = []
    for step in range(4):
        big = Big()
        alive.append(weakref.ref(big))
        if step % 2 == 0:
            names = look()
            assert names["big"] is big and names["step"] == step
            del names
    del big
    gc.collect()
    assert [one() for one in alive] == [None] * 4


def test_a_dictionary_that_the_program_has_does_not_change() -> None:
    def train(rate: float) -> None:
        config = locals()
        before = dict(config)
        batch = Big()
        for _ in range(2):
            assert look()["batch"] is batch and look()["rate"] == rate
            assert config == before == {"rate": 0.5}
        # It stays what it is in Python.
        assert own(locals()) == {"rate", "config", "before", "batch", "_"}

    train(0.5)


def test_variables_of_cells_classes_generators_and_modules() -> None:
    outer = "outer"
    seen: list[dict[str, Any]] = []

    class Body:
        attribute = 1
        seen.append(look())

    def generates() -> Any:
        inner = outer + "!"
        seen.append(look())
        yield inner
        seen.append(look())

    assert list(generates()) == ["outer!"]
    assert seen[0]["attribute"] == 1 and Body.attribute == 1
    assert [names["inner"] for names in seen[1:]] == ["outer!"] * 2
    assert seen[1]["outer"] == "outer" and "unbound_yet" not in seen[1]
    unbound_yet = 1
    assert look()["unbound_yet"] == unbound_yet
    names: dict[str, Any] = {"look": look}
    exec(compile("value = 3\nfound = look()", __file__, "exec"), names)
    assert names["found"]["value"] == 3 and names["value"] == 3


def test_a_debugger_that_traces_the_function_keeps_its_variables() -> None:
    # Up to Python 3.12 variables are written back from the dictionary when a trace function returns.
    def traced() -> list[int]:
        collected = []
        total = 0
        for number in range(5):
            total += number
            collected.append(total)
        return collected

    looks: list[int] = []

    def trace(frame: Any, event: str, argument: Any) -> Any:
        if frame.f_code is traced.__code__:
            looks.append(len(look()))
            assert isinstance(frame.f_locals, Mapping)
            looks.append(len(look()))
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        result = traced()
    finally:
        sys.settrace(before)
    assert result == [0, 1, 3, 6, 10] and len(looks) > 20


def test_a_frame_that_was_looked_at_often_is_as_new() -> None:
    big = Big()
    before = sys.getrefcount(big)
    for _ in range(1000):
        namespace.local_variables(sys._getframe())
    assert sys.getrefcount(big) == before
    assert own(locals()) == {"big", "before", "_"}


#: Walks the frames of a thread that calls and returns, while each collection of garbage lets that thread go on.
WALKS = """
import gc, threading, time
import probe_agent.torch
from probe_agent.eval import namespace

class Garbage:
    alive = 0
    def __init__(self):
        self.me = self
        Garbage.alive += 1
    def __del__(self):
        time.sleep(2e-4)
        Garbage.alive -= 1

def small():
    time.sleep(1e-5)
    return smaller()
def smaller():
    time.sleep(1e-5)
NAMES = [f"v{number}" for number in range(300)]
exec("def large(n):\\n  " + " = ".join(NAMES) + " = [n]\\n  time.sleep(3e-5)\\n  return large(n - 1) if n else len(" + NAMES[0] + ")")

over = False
def train():
    while not over:
        small()
        large(6)
        if Garbage.alive < 3:
            Garbage()

thread = threading.Thread(target=train)
thread.start()
gc.set_threshold(0)
for _ in range(2000):
    time.sleep(1e-5)
    gc.set_threshold(1)
    frames = namespace.stack(thread.ident)
    gc.set_threshold(0)
    assert len(frames) < 50 and all(hasattr(frame, "f_code") for frame in frames), frames
    for frame in frames:
        namespace.local_variables(frame)
over = True
thread.join()
assert gc.isenabled()
"""


def test_garbage_that_is_collected_meanwhile_corrupts_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", WALKS], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
