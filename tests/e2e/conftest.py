"""Real runs for the end-to-end tests: the installed `probe`, a real torch process, real sockets."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPTS = pathlib.Path(__file__).resolve().parent / "scripts"
BIN = pathlib.Path(sys.executable).parent
PROBE = str(BIN / "probe")
PATIENCE = 120.0  # seconds that anything may take on a loaded machine before a test gives up

#: Every table that agents fill, whose rows they count.
AGENT_TABLES = [
    *(
        f"python.{name}"
        for name in ("torch_trace", "nccl_trace", "steps", "data_trace", "memory", "environment", "exceptions")
    ),
    *("python.spans", "python.metrics", "python.copies", "python.sync_points", "process.metrics", "probe.overhead"),
]


def wait_for(what: str, condition: Callable[[], object], patience: float = PATIENCE) -> object:
    """Polls until `condition` holds and returns what it returned; fails the test after `patience` seconds."""
    deadline = time.monotonic() + patience
    while True:
        if result := condition():
            return result
        if time.monotonic() > deadline:
            pytest.fail(f"waited {patience:.0f} s for {what}")
        time.sleep(0.05)


class Home:
    """A PROBE_HOME and a directory for sockets of a test's own, and the commands in it."""

    def __init__(self, directory: pathlib.Path) -> None:
        self.directory = directory
        # A socket's path may be 107 bytes long at most, which pytest's own directories come close to.
        self.sockets = pathlib.Path(tempfile.mkdtemp(prefix="probe-"))
        self.children: list[subprocess.Popen[str]] = []

    def environment(self, **more: str) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith("PROBE_") and k != "PROBE"}
        mine = {
            "PROBE_HOME": str(self.directory / "state"),
            "PROBE_RUNTIME_DIR": str(self.sockets),
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1",
            "NO_COLOR": "1",
        }
        return {**kept, **mine, **more}

    def serve(self, name: str) -> tuple[subprocess.Popen[str], str]:
        """A collector by itself, on a socket whose address stays the same when another one takes its place."""
        (self.sockets / "fixed").mkdir(mode=0o700, exist_ok=True)
        address = f"unix:{self.sockets}/fixed/{name}.sock"
        process = self.spawn("probe", "serve", "--name", name, "--listen", address)
        wait_for(f"the collector of {name}", lambda: self.probe(address, "query", "SELECT 1").returncode == 0)
        return process, address

    def probe(self, *arguments: str, stdin: str | None = None, **more: str) -> subprocess.CompletedProcess[str]:
        """Runs `probe ARGUMENTS` to its end."""
        return subprocess.run(
            [PROBE, *arguments],
            env=self.environment(**more),
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )

    def spawn(self, *command: str, **more: str) -> subprocess.Popen[str]:
        """Starts a command in a session of its own; its output goes to files beside the home."""
        number = len(self.children)
        out = open(self.directory / f"{number}.out", "w")
        err = open(self.directory / f"{number}.err", "w")
        child = subprocess.Popen(
            command, env=self.environment(**more), stdin=subprocess.DEVNULL, stdout=out, stderr=err, text=True,
            start_new_session=True, cwd=ROOT,
        )  # fmt: skip
        child.out_path, child.err_path = pathlib.Path(out.name), pathlib.Path(err.name)  # type: ignore[attr-defined]
        self.children.append(child)
        return child

    def train(self, *command: str, name: str = "gpt", **more: str) -> Run:
        """`probe run --name NAME -- COMMAND`."""
        return Run(self, name, self.spawn(PROBE, "run", "--name", name, "--", *command, **more))

    def query(self, endpoint: str, sql: str) -> list[dict]:
        done = self.probe(endpoint, "query", "--format", "json", sql)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def close(self) -> None:
        # First politely: probe passes it on, and torchrun ends its workers, which are in sessions of their own.
        for child in self.children:
            child.terminate()
        for child in self.children:
            try:
                child.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()


class Run:
    """A training run under `probe run`."""

    def __init__(self, home: Home, name: str, process: subprocess.Popen[str]) -> None:
        self.home, self.name, self.process = home, name, process

    @property
    def output(self) -> str:
        return self.process.out_path.read_text()

    @property
    def errors(self) -> str:
        return self.process.err_path.read_text()

    def query(self, sql: str) -> list[dict]:
        return self.home.query(self.name, sql)

    def eval(self, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.home.probe(self.name, "eval", *arguments, code)

    def wait_for_step(self, step: int, ranks: int = 1) -> None:
        """Until every one of `ranks` ranks has finished at least `step` steps that can be asked for."""

        def there() -> bool:
            assert self.process.poll() is None, f"the run ended early:\n{self.output}\n{self.errors}"
            done = self.home.probe(
                self.name, "query", "--format", "json", "SELECT pid, MAX(step) AS step FROM python.steps GROUP BY pid"
            )
            rows = json.loads(done.stdout) if done.returncode == 0 else []
            return sum(row["step"] >= step for row in rows) >= ranks

        wait_for(f"step {step} on {ranks} ranks", there)

    def finish(self) -> str:
        """Waits for the run's end, which must be a good one, and returns what it printed."""
        status = self.process.wait(PATIENCE)
        assert status == 0, f"exit {status}:\n{self.output}\n{self.errors}"
        return self.output


@pytest.fixture
def home(tmp_path: pathlib.Path) -> Iterator[Home]:
    made = Home(tmp_path)
    yield made
    made.close()


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """A GPT on two ranks under torchrun that has made more than 210 steps and goes on."""
    home = Home(tmp_path_factory.mktemp("home"))
    run = home.train("torchrun", "--nproc-per-node", "2", "examples/train_gpt.py", "--steps", "100000")
    try:
        run.wait_for_step(212, ranks=2)
        yield run
    finally:
        home.close()
