"""Which processes get an agent, and how it waits for torch: real interpreters, started as people start them."""

from __future__ import annotations

import os
import pathlib
import sys

import pytest
from activation_support import TRAIN, Bench


@pytest.fixture
def bench(tmp_path: pathlib.Path) -> Bench:
    return Bench(tmp_path)


@pytest.mark.parametrize("value", [None, "", "0"])
def test_without_being_asked_for_nothing_is_imported(bench: Bench, value: str | None) -> None:
    code = "import sys, torch; print([m for m in sys.modules if m.startswith('probe_agent')], len(sys.meta_path))"
    environment = {} if value is None else {"PROBE": value}
    assert bench.python(code, **environment).startswith("[] ")


def test_before_torch_next_to_nothing_is_imported(bench: Bench) -> None:
    code = "import sys; print(sorted(m for m in sys.modules if m.startswith('probe_agent')))"
    loaded = "['probe_agent', 'probe_agent._autostart', 'probe_agent.activation', 'probe_agent.imports', 'probe_agent.process']\n"
    assert bench.python(code, PROBE="1") == loaded
    # Neither are modules that Python itself had not, but for one that is built into it.
    code = "import sys; print(*sorted(sys.modules))"
    with_agent, without = (set(bench.python(code, PROBE=value).split()) for value in ("1", "0"))
    assert {m for m in with_agent - without if not m.startswith("probe_agent")} <= {"__future__", "atexit"}


def test_the_finder_steps_aside_after_one_import(bench: Bench) -> None:
    code = """
import sys
before = [type(f).__name__ for f in sys.meta_path]
import json, email.message
try:
    import no_such_module
except ImportError:
    pass
import torch
print(before.count("_TorchFinder"), [type(f).__name__ for f in sys.meta_path].count("_TorchFinder"))
print(torch.__spec__.loader.exec_module.__qualname__)
"""
    # The loader of torch is restored.
    assert bench.python(code, PROBE="1").splitlines() == ["1 0", "_LoaderBasics.exec_module"]


IN_THE_MIDDLE = """
import sys
from probe_agent import activation, agent

class InTheMiddle:
    def find_spec(self, name, path, target=None):
        if name == "torch.nn":
            sys.meta_path.remove(self)
            assert sys.modules["torch"].__spec__._initializing
            activation.begin(agent.install)
            assert activation.waiting()
            {more}

sys.meta_path.insert(0, InTheMiddle())
"""


def test_an_import_of_torch_that_is_under_way_is_waited_for(bench: Bench) -> None:
    """`probe attach` meets this case in a process that was started just now."""
    code = IN_THE_MIDDLE.format(more="") + (
        "import torch, importlib.machinery as machinery\nfrom probe_agent import status\n"
        "assert type(torch.__spec__) is machinery.ModuleSpec and not torch.__spec__._initializing\n"
        "assert not activation.waiting()\nprint(status()['phase'])"
    )
    assert bench.python(code) == "waiting for training\n"
    # After an import that fails, the next one is waited for.
    again = """
try:
    import torch
except ZeroDivisionError:
    assert activation.waiting() and "torch" not in sys.modules
    from probe_agent import status
    print(status()["phase"])
"""
    assert bench.python(IN_THE_MIDDLE.format(more="1 / 0") + again) == "waiting for torch\n"
    # After `end`, no import is waited for.
    taken_back = "import torch\nfrom probe_agent import status\nprint(status()['phase'], activation.waiting())"
    assert bench.python(IN_THE_MIDDLE.format(more="activation.end()") + taken_back) == "off False\n"


# What libraries do before torch is imported; transformers, datasets and accelerate do the first.
BEFORE_TORCH = {
    "a question whether it is there": "import importlib.util\nassert importlib.util.find_spec('torch')",
    "two questions, and one for what is not there": """
import importlib.util
assert importlib.util.find_spec("torch") and importlib.util.find_spec("torch")
assert importlib.util.find_spec("torch.nn") and not importlib.util.find_spec("torch_that_is_not_there")
""",
    "a finder that asks all finders": """
import importlib.util, sys
class Asks:
    asked = False
    def find_spec(self, name, path, target=None):
        if name != "torch" or self.asked:
            return None
        self.asked = True
        return importlib.util.find_spec(name)
sys.meta_path.insert(1, Asks())
""",
    "an import in a thread": """
import threading
thread = threading.Thread(target=lambda: __import__("torch"))
thread.start()
thread.join()
""",
}

#: The common cases.
MET = ("a question whether it is there", "an import in a thread")


@pytest.mark.parametrize(
    "before",
    [
        pytest.param(code, id=name, marks=[pytest.mark.extended] * (name not in MET))
        for name, code in BEFORE_TORCH.items()
    ],
)
def test_what_asks_for_torch_before_it_is_imported_leaves_it_watched(bench: Bench, before: str) -> None:
    code = (
        before
        + TRAIN
        + """
train(2)
import sys, probe_agent
print(probe_agent.status()["phase"] != "off", probe_agent.status()["step"])
print([type(f).__name__ for f in sys.meta_path].count("_TorchFinder"))
"""
    )
    assert bench.python(code, PROBE="1").splitlines() == ["True 2", "0"]


@pytest.mark.parametrize("when", ["after the wheel", pytest.param("before the wheel", marks=pytest.mark.extended)])
def test_torch_that_sitecustomize_imports_is_watched(bench: Bench, when: str) -> None:
    customize = bench.directory / "sitecustomize.py"
    own = customize.read_text()
    customize.write_text(f"{own}\nimport torch\n" if when == "after the wheel" else f"import torch\n{own}\n")
    code = (
        TRAIN
        + "train(2)\nimport probe_agent\nprint(probe_agent.status()['phase'] != 'off', probe_agent.status()['step'])"
    )
    assert bench.python(code, PROBE="1") == "True 2\n"


def torch_that_raises(bench: Bench, error: str) -> str:
    """A folder with a torch whose import raises this error."""
    fake = bench.directory / "fake/torch"
    fake.mkdir(parents=True)
    (fake / "__init__.py").write_text(f"raise {error}('planted')")
    return str(fake.parent)


def test_torch_that_a_finder_of_the_program_finds_is_watched(bench: Bench) -> None:
    code = (
        """
import sys
from importlib.machinery import PathFinder

class First:
    def find_spec(self, name, path=None, target=None):
        return PathFinder.find_spec(name, path, target)

sys.meta_path.insert(0, First())
"""
        + TRAIN
        + """
train(2)
import probe_agent
print(probe_agent.status()["enabled"], probe_agent.status()["step"])
print([type(f).__name__ for f in sys.meta_path].count("_TorchFinder"))
"""
    )
    assert bench.python(code, PROBE="1").splitlines() == ["True 2", "0"]


def test_an_import_of_torch_that_fails_can_be_made_again(bench: Bench) -> None:
    fake = torch_that_raises(bench, "ImportError")
    code = f"""
import sys
sys.path.insert(0, {fake!r})
try:
    import torch
except ImportError as error:
    print(error)
sys.path.remove({fake!r})
import torch, probe_agent
print(probe_agent.status()["phase"])
"""
    assert bench.python(code, PROBE="1").splitlines() == ["planted", "waiting for training"]


def test_the_traceback_of_an_import_that_fails_is_as_without_the_agent(bench: Bench) -> None:
    fake = torch_that_raises(bench, "ValueError")
    code = f"""
import sys, traceback
sys.path.insert(0, {fake!r})
try:
    import torch
except ValueError:
    traceback.print_exc(file=sys.stdout)
"""
    watched = bench.python(code, PROBE="1")
    assert "planted" in watched and watched == bench.python(code, PROBE="0")


def test_helpers_and_launchers_are_no_agents(bench: Bench) -> None:
    from probe_agent import process

    known = sys.orig_argv if hasattr(sys, "orig_argv") else None
    kinds = {
        ("python", "train.py"): "trainer",
        ("python", "-m", "package.train"): "trainer",
        ("python", "-u", "-X", "dev", "train.py", "-m", "torch.distributed.run"): "trainer",
        (
            "python",
            "-c",
            "from multiprocessing.spawn import spawn_main; spawn_main()",
            "--multiprocessing-fork",
        ): "child",
        ("python", "-c", "from multiprocessing.resource_tracker import main;main(5)"): "none",
        ("python", "-c", "from multiprocessing.forkserver import main; main(1)"): "child",
        ("python", "-m", "torch.distributed.run", "train.py"): "none",
        ("python", "/venv/bin/torchrun", "train.py"): "none",
        ("python", "-u", "/venv/bin/torchrun", "train.py"): "none",
        ("python", "/venv/bin/accelerate", "launch", "train.py"): "none",
        ("python", "-m", "deepspeed.launcher.launch", "train.py"): "none",
        ("python", "/work/deepspeed/train.py"): "trainer",
        ("python", "/x/torch/_inductor/compile_worker/__main__.py", "--workers=2"): "none",
    }
    try:
        for arguments, kind in kinds.items():
            sys.orig_argv = list(arguments)  # type: ignore[attr-defined]
            assert process.kind() == kind, arguments
    finally:
        if known is None:
            del sys.orig_argv  # type: ignore[attr-defined]
        else:
            sys.orig_argv = known


def test_a_command_line_and_environment_of_any_bytes_are_an_agents(bench: Bench) -> None:
    code = """
import os
import torch, probe_agent
from probe_agent import collector
torch.nn.Linear(1, 1)(torch.ones(1))
print(probe_agent.status()["phase"], collector.revival(os.environ["PROBE_COLLECTOR"]) is not None)
"""
    bytes_of_no_text = os.fsdecode(b"\xff")
    printed = bench.python(
        code,
        file=f"script {bytes_of_no_text}.py",
        PROBE="1",
        PROBE_COLLECTOR=f"unix:{bench.directory}/run/nobody.sock",
        PROBE_BIN="/bin/true",  # only named: it would start the collector again seconds later
        TITLE=bytes_of_no_text,
    )
    assert printed == "connecting True\n"
    assert "not connected" not in bench.errors
