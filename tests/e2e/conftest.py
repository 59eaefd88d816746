"""Real runs for the end-to-end tests: the installed `probe`, a real torch process, real sockets."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

import pytest
from connection import Connections

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPTS = pathlib.Path(__file__).resolve().parent / "scripts"
BIN = pathlib.Path(sys.executable).parent
PROBE = str(BIN / "probe")
#: On PYTHONPATH, it makes a training process start and end in less than half the time.
QUICK_START = str(ROOT / "tests" / "quick_start")
PATIENCE = 240.0  # seconds that anything may take on a loaded machine before a test gives up

# Started by a shell that ignores the signal (a script's `&`), pytest would make every command of the tests ignore it too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

#: Every table that agents fill, whose rows they count.
AGENT_TABLES = [
    *(
        f"python.{name}"
        for name in (
            "torch_trace",
            "nccl_trace",
            "steps",
            "data_trace",
            "memory",
            "environment",
            "exceptions",
            "checkpoints",
            "pauses",
            "operator_counts",
        )
    ),
    *("python.spans", "python.metrics", "python.copies", "python.sync_points", "process.metrics", "probe.overhead"),
]


def wait_for(
    what: str,
    condition: Callable[[], object],
    patience: float = PATIENCE,
    progress: Callable[[], object] = lambda: None,
) -> object:
    """Polls until `condition` holds and returns what it returned; fails the test after `patience` seconds in which what
    `progress` returns stayed the same, and says what the condition returned last and what was last asked of a collector."""
    deadline = time.monotonic() + patience
    pause, before = 0.02, progress()
    while True:
        if result := condition():
            return result
        if (now := progress()) != before:
            deadline, before = time.monotonic() + patience, now
        if time.monotonic() > deadline:
            pytest.fail(f"waited {patience:.0f} s for {what}; last: {result!r}; {Home.last_answer}")
        time.sleep(pause)
        pause = min(pause * 1.2, 0.25)


class Home:
    """A PROBE_HOME and a directory for sockets of a test's own, and the commands in it."""

    def __init__(self, directory: pathlib.Path) -> None:
        self.directory = directory
        # A socket's path may be 107 bytes long at most, which pytest's own directories come close to.
        self.sockets = pathlib.Path(tempfile.mkdtemp(prefix="probe-"))
        self.children: list[subprocess.Popen[str]] = []
        self.connections = Connections()
        self.served: dict[str, pathlib.Path] = {}

    #: The last query or command of any home and its answer, for the message of a wait that fails.
    last_answer = "nothing was asked"

    def environment(self, **more: str) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith("PROBE_") and k != "PROBE"}
        mine = {
            "PROBE_HOME": str(self.directory / "state"),
            "PROBE_RUNTIME_DIR": str(self.sockets),
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "PYTHONPATH": QUICK_START,
            "OMP_NUM_THREADS": "1",
            "NO_COLOR": "1",
            # Rows of every step, whatever else the machine does meanwhile; test_governor.py and the document have the default.
            "PROBE_DETAIL": "every-step",
        }
        return {**kept, **mine, **more}

    def serve(self, name: str) -> tuple[subprocess.Popen[str], str]:
        """A collector by itself, on a socket whose address stays the same when another collector replaces it."""
        (self.sockets / "fixed").mkdir(mode=0o700, exist_ok=True)
        self.served[name] = self.sockets / "fixed" / f"{name}.sock"
        address = f"unix:{self.served[name]}"
        process = self.spawn("probe", "serve", "--name", name, "--listen", address)
        wait_for(f"the collector of {name}", lambda: self.answers(address))
        return process, address

    def answers(self, endpoint: str) -> bool:
        """Whether its collector does, or what is kept of its run."""
        return bool(self.ask(endpoint, "SELECT 1"))

    def probe(self, *arguments: str, stdin: str | None = None, **more: str) -> subprocess.CompletedProcess[str]:
        """Runs `probe ARGUMENTS` to its end."""
        done = subprocess.run(
            [PROBE, *arguments],
            env=self.environment(**more),
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        Home.last_answer = f"probe {' '.join(arguments)}: exit status {done.returncode}\n{done.stdout}{done.stderr}"
        return done

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

    def train(self, *command: str, name: str = "gpt", within: tuple[str, ...] = (), **more: str) -> Run:
        """`probe run --name NAME -- COMMAND`, as the arguments of `within` where there is such a command."""
        return Run(self, name, self.spawn(*within, PROBE, "run", "--name", name, "--", *command, **more))

    def socket_of(self, endpoint: str) -> pathlib.Path | None:
        """Where its collector listens, if it is one."""
        if endpoint.startswith("unix:"):
            return pathlib.Path(endpoint.removeprefix("unix:"))
        if endpoint in self.served:
            return self.served[endpoint]
        if "@" in endpoint:
            return self.sockets / f"{endpoint}.sock"
        numbers = [path.name[len(endpoint) + 1 : -5] for path in self.sockets.glob(f"{endpoint}@*.sock")]
        newest = max((int(number) for number in numbers if number.isdigit()), default=None)
        return self.sockets / f"{endpoint}@{newest}.sock" if newest is not None else None

    def ask(self, endpoint: str, sql: str) -> list[dict] | None:
        """The rows of a query, over an open connection where there is a collector; None where the query fails."""
        socket = self.socket_of(endpoint)
        rows = self.connections.query(socket, sql) if socket else None
        if rows is None:
            done = self.probe(endpoint, "query", "--format", "json", sql)
            rows = json.loads(done.stdout) if done.returncode == 0 else None
        Home.last_answer = f"{sql}: {done.stderr if rows is None else rows}"[:2000]
        return rows

    def query(self, endpoint: str, sql: str) -> list[dict]:
        rows = self.ask(endpoint, sql)
        assert rows is not None, Home.last_answer
        return rows

    def close(self) -> None:
        self.connections.close()
        # First politely: probe passes it on, and torchrun ends its workers, which are in sessions of their own.
        for child in self.children:
            child.terminate()
        for child in self.children:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(30)
            # What a shell has left behind when it ended goes on in the same group.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        shutil.rmtree(self.sockets, ignore_errors=True)


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
        """Until every one of `ranks` ranks has finished at least `step` steps that can be asked for, however slow the machine
        is: as long as the ranks advance, they are waited for."""
        reached: list[int] = []

        def there() -> bool:
            assert self.process.poll() is None, f"the run ended early:\n{self.output}\n{self.errors}"
            rows = self.home.ask(self.name, "SELECT pid, MAX(step) AS step FROM python.steps GROUP BY pid")
            reached[:] = [row["step"] for row in rows or []]
            return sum(number >= step for number in reached) >= ranks

        wait_for(f"step {step} on {ranks} ranks", there, progress=lambda: sum(reached))

    def finish(self) -> str:
        """Waits for the run's end, which must be a good one, and returns what it printed."""
        status = self.process.wait(2 * PATIENCE)
        assert status == 0, f"exit {status}:\n{self.output}\n{self.errors}"
        return self.output


@pytest.fixture
def home(tmp_path: pathlib.Path) -> Iterator[Home]:
    made = Home(tmp_path)
    yield made
    made.close()


#: The run of `two_ranks`, while a test that wants it is under way or next.
_shared: list[Run] = []


@pytest.fixture
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A GPT on two ranks under torchrun that has begun and goes on: one for all tests that leave it as it was."""
    if not _shared:
        home = Home(tmp_path_factory.mktemp("home"))
        # With larger batches or without a pause it would take both processors from the tests that run meanwhile.
        program = ["examples/train_gpt.py", "--steps", "1000000", "--batch-size", "4", "--pause", "0.1"]
        _shared.append(home.train("torchrun", "--nproc-per-node", "2", *program))
        _shared[0].wait_for_step(3, ranks=2)
    return _shared[0]


def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """Ends it when no test wants it any more: it trains, and takes what others need."""
    if _shared and "two_ranks" not in getattr(nextitem, "fixturenames", ()):
        _shared.pop().home.close()
