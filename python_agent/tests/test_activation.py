"""Which processes get an agent, when, and at what cost: real interpreters, started as people start them."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
import textwrap

import probe_agent
import pytest
from recording_support import HOOKS_OF_GROUPS

PACKAGE = pathlib.Path(probe_agent.__file__).resolve().parent
TRAIN = """
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train(steps):
    for _ in range(steps):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
"""


class Bench:
    """A directory for scripts, and an interpreter that reads our .pth file as an installed wheel's is read."""

    def __init__(self, directory: pathlib.Path) -> None:
        self.directory = directory
        site = directory / "site"
        site.mkdir()
        pth = PACKAGE.parent / "probe_agent.data/platlib/probe_agent.pth"
        shutil.copy(pth if pth.exists() else PACKAGE.parent / "probe_agent.pth", site)
        # Where tests run without an installed wheel; with one, the file is read twice, which must do no harm.
        (directory / "sitecustomize.py").write_text(f"import site; site.addsitedir({str(site)!r})")

    def python(self, code: str, *arguments: str, file: str = "script.py", **environment: str) -> str:
        """Runs a script to exit status 0 and returns its output; its stderr is in `errors`."""
        path = self.directory / file
        path.write_text(textwrap.dedent(code))
        kept = {k: v for k, v in os.environ.items() if not k.startswith("PROBE")}
        done = subprocess.run(
            [sys.executable, *arguments, str(path)],
            env={
                **kept,
                "PYTHONPATH": os.pathsep.join([str(self.directory), str(PACKAGE.parent)]),
                "PROBE_RUNTIME_DIR": str(self.directory / "run"),
                "PROBE_COLLECTOR": f"unix:{self.directory}/nobody.sock",
                "OMP_NUM_THREADS": "1",
                **environment,
            },
            capture_output=True,
            text=True,
            timeout=120,
        )
        self.errors = done.stderr
        assert done.returncode == 0, done.stderr
        return done.stdout


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
    # Neither are modules that Python itself had not.
    code = "import sys; print(*sorted(sys.modules))"
    with_agent, without = (set(bench.python(code, PROBE=value).split()) for value in ("1", "0"))
    assert {m for m in with_agent - without if not m.startswith("probe_agent")} <= {"__future__"}


def test_torch_alone_does_not_connect_and_training_does(bench: Bench) -> None:
    code = (
        TRAIN
        + """
import threading, probe_agent
print(probe_agent.status()["phase"], threading.active_count())
train(1)
status = probe_agent.status()
print(status["phase"], status["enabled"], status["step"], status["layers"]["forward"])
import os, time
deadline, found = time.monotonic() + 60, None
# A thread sets its own name, and may take a while to do so.
while found is None and time.monotonic() < deadline:
    for task in os.listdir("/proc/self/task"):
        try:
            if open(f"/proc/self/task/{task}/comm").read().strip() == "probe-uplink":
                found = next(l for l in open(f"/proc/self/task/{task}/status") if l.startswith("SigBlk"))
        except (FileNotFoundError, ProcessLookupError):  # Some other thread that has just ended.
            pass
# Every signal that can be blocked, except the two that threads themselves use.
print(int(found.split()[1], 16) | 1 << 31 | 1 << 32 | 1 << 8 | 1 << 18 == (1 << 64) - 1)
"""
    )
    assert bench.python(code, PROBE="1").splitlines() == [
        "waiting for training 1",
        "connecting True 1 tp_call",
        "True",
    ]
    # No collector listens: that is reported once, and training went on.
    assert bench.errors.count("probe: ") == 1 and bench.errors.count("nobody.sock") == 1


def test_a_program_that_waits_for_all_its_threads_ends(bench: Bench) -> None:
    code = (
        TRAIN
        + """
import threading
train(1)
for thread in threading.enumerate():
    if thread is not threading.main_thread():
        thread.join()
print(threading.active_count())
"""
    )
    assert bench.python(code, PROBE="1") == "1\n"
    assert "nobody.sock" in bench.errors


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


def torch_that_raises(bench: Bench, error: str) -> str:
    """A folder with a torch whose import raises this error."""
    fake = bench.directory / "fake/torch"
    fake.mkdir(parents=True)
    (fake / "__init__.py").write_text(f"raise {error}('planted')")
    return str(fake.parent)


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


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_a_data_loader_are_not_agents(bench: Bench, method: str) -> None:
    code = """
import os, sys, torch
class Data(torch.utils.data.Dataset):
    def __init__(self): self.layer = None
    def __len__(self): return 4
    def __getitem__(self, i):
        if self.layer is None: self.layer = torch.nn.Linear(1, 1)
        self.layer(torch.ones(1))  # a worker may call modules without training
        native = sys.modules.get("probe_agent._native")
        enabled = native is not None and native.status()["enabled"]
        threads = []
        for task in os.listdir("/proc/self/task"):
            try:
                threads.append(open(f"/proc/self/task/{task}/comm").read().strip())
            except (FileNotFoundError, ProcessLookupError):  # It has just ended.
                pass
        return torch.tensor([int(enabled), int("probe-uplink" in threads)])
if __name__ == "__main__":
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []
    loader = torch.utils.data.DataLoader(Data(), num_workers=2, multiprocessing_context="METHOD")
    model(torch.ones(1, 2)).sum().backward(); optimizer.step()
    for batch in loader:
        seen.append(batch.flatten().tolist())
        model(batch.float()).sum().backward(); optimizer.step()
    import probe_agent
    print(seen, probe_agent.status()["phase"], probe_agent.status()["step"])
""".replace("METHOD", method)
    assert bench.python(code, PROBE="1") == "[[0, 0], [0, 0], [0, 0], [0, 0]] connecting 5\n"


def test_a_spawned_process_that_joins_a_group_is_an_agent(bench: Bench) -> None:
    code = """
import os, torch
import torch.distributed as dist
import torch.multiprocessing as mp
def rank(rank, file):
    torch.nn.Linear(1, 1)(torch.ones(1))
    import probe_agent
    before = probe_agent.status()["phase"]
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    said = [str(rank), before, probe_agent.status()["phase"], probe_agent.status()["layers"]["collectives"]]
    # One write: two processes share the pipe.
    os.write(1, (" ".join(said) + "\\n").encode())
    dist.barrier()
    dist.destroy_process_group()
if __name__ == "__main__":
    mp.spawn(rank, (os.path.abspath("rendezvous"),), nprocs=2)
""".replace('"rendezvous"', repr(str(bench.directory / "rendezvous")))
    collectives = "pg_hooks" if HOOKS_OF_GROUPS else "patched-functions"
    lines = bench.python(code, PROBE="1").splitlines()
    # The gloo of torch 2.8 says on stdout that it is connected.
    lines = sorted(line for line in lines if not line.startswith("[Gloo]"))
    assert lines == [f"{rank} off connecting {collectives}" for rank in (0, 1)]


def test_a_spawned_process_that_joins_rpc_is_an_agent(bench: Bench) -> None:
    code = """
import os
import torch.multiprocessing as mp
from torch.distributed import rpc
def worker(rank, file):
    import probe_agent
    before = probe_agent.status()["phase"]
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{file}")
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2, rpc_backend_options=options)
    os.write(1, f"{rank} {before} {probe_agent.status()['phase']}\\n".encode())
    rpc.shutdown()
if __name__ == "__main__":
    mp.spawn(worker, (os.path.abspath("rendezvous"),), nprocs=2)
""".replace('"rendezvous"', repr(str(bench.directory / "rendezvous")))
    lines = bench.python(code, PROBE="1").splitlines()
    lines = sorted(line for line in lines if not line.startswith("[Gloo]"))
    assert lines == [f"{rank} off waiting for training" for rank in (0, 1)]


def test_a_forked_child_runs_nothing_of_ours_and_ends_at_once(bench: Bench) -> None:
    code = (
        TRAIN
        + """
import os, sys, atexit, probe_agent
from probe_agent import _native
train(2)
child = os.fork()
if child == 0:
    # Flushing at exit would wait for a thread that is not here.
    stop, _native.stop = _native.stop, lambda *_: os.write(1, b"flushed ")
    assert probe_agent.status()["phase"] == "forked" and not probe_agent.status()["enabled"]
    probe_agent.start(); probe_agent.configure(detail="off"); probe_agent.step(); probe_agent.stop()
    train(2)
    assert probe_agent.status()["step"] == 2, "counted in the child"
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
train(1)
print(probe_agent.status()["step"], probe_agent.status()["config"]["detail"])
"""
    )
    assert bench.python(code, PROBE="1") == "3 auto\n"


def test_a_program_can_start_configure_and_stop_it(bench: Bench) -> None:
    code = (
        """
import probe_agent
print(probe_agent.status()["phase"])
probe_agent.start(detail="off")
print(probe_agent.status()["phase"], probe_agent.status()["config"]["detail"])
"""
        + TRAIN
        + """
print(probe_agent.status()["phase"])
train(2)
probe_agent.configure(detail="every-step")
try:
    probe_agent.configure(detail="sometimes")
except ValueError as error:
    print(error)
probe_agent.step()
print(probe_agent.status()["config"]["detail"], probe_agent.status()["step"])
probe_agent.stop()
print(probe_agent.status()["phase"], probe_agent.status()["enabled"])
train(2)
probe_agent.start()
train(1)
print(probe_agent.status()["phase"], probe_agent.status()["step"], probe_agent.__version__.count("."))
"""
    )
    assert bench.python(code).splitlines() == [
        "off",
        "waiting for torch off",
        "connecting",
        "detail cannot be 'sometimes'; it can be auto, every-step, 1/N, off",
        "every-step 3",
        "ended False",
        "connecting 4 2",
    ]


def test_started_after_training_has_begun(bench: Bench) -> None:
    code = (
        TRAIN
        + """
import probe_agent
train(3)
probe_agent.start()
train(2)
print(probe_agent.status()["step"], probe_agent.status()["phase"])
"""
    )
    assert bench.python(code) == "2 connecting\n"


def test_probe_0_wins_over_what_a_program_calls(bench: Bench) -> None:
    code = TRAIN + "import probe_agent\nprobe_agent.start()\ntrain(1)\nprint(probe_agent.status()['phase'])"
    assert bench.python(code, PROBE="0") == "off\n"


def test_a_wrong_address_is_said_and_training_goes_on(bench: Bench) -> None:
    code = TRAIN + "train(1)\nimport probe_agent\nprint(probe_agent.status()['step'], probe_agent.status()['problem'])"
    out = bench.python(code, PROBE="1", PROBE_COLLECTOR="nonsense")
    assert "neither unix:PATH nor HOST:PORT" in out and out.startswith("1 ")
    assert bench.errors.count("probe: ") == 1 and "hint:" in bench.errors


def test_snippets_beside_training_cannot_train(bench: Bench) -> None:
    code = (
        TRAIN
        + """
train(1)
import threading
from probe_agent import _native
def beside():
    _native.thread_mode(_native.ThreadMode.BESIDE)
    for what in (lambda: model(torch.ones(1, 4)), optimizer.step):
        try:
            what()
            print("trained")
        except RuntimeError as error:
            print(error)
    with torch.no_grad():
        print(model(torch.ones(1, 4)).shape)
thread = threading.Thread(target=beside)
thread.start()
thread.join()
"""
    )
    first, second, third = bench.python(code, PROBE="1").splitlines()
    assert "must not train" in first and "--at step" in first and first == second
    assert third == "torch.Size([1, 1])"
