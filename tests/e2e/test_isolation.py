"""Whatever the collector does, or does not: training computes the same, prints the same and ends the same."""

from __future__ import annotations

import signal
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from conftest import PATIENCE, SCRIPTS, Home, wait_for

TRAIN = ["python", str(SCRIPTS / "losses.py")]
STEPS = 256


def train(home: Home, how: str = "well", **settings: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*TRAIN, how], env=home.environment(**settings), capture_output=True, text=True, timeout=PATIENCE
    )  # fmt: skip


def says_nothing(connection: socket.socket) -> None:
    """Reads, and answers nothing."""
    while connection.recv(1 << 16):
        pass


def reads_nothing(connection: socket.socket) -> None:
    threading.Event().wait(300)


def reads_slowly(connection: socket.socket) -> None:
    while connection.recv(64):
        time.sleep(0.05)


def resets(connection: socket.socket) -> None:
    connection.recv(100)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def speaks_something_else(connection: socket.socket) -> None:
    connection.recv(100)
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 3\r\n\r\nno\n")


class Other:
    """A listener at the socket of a collector that is none."""

    def __init__(self, home: Home, answer: Callable[[socket.socket], None]) -> None:
        (home.sockets / "other").mkdir(mode=0o700)
        self.path = str(home.sockets / "other" / "s")
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.path)
        self.listener.listen()
        self.met = 0
        threading.Thread(target=self._serve, args=(answer,), daemon=True).start()

    def _serve(self, answer: Callable[[socket.socket], None]) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self.met += 1
            threading.Thread(target=self._one, args=(answer, connection), daemon=True).start()

    @staticmethod
    def _one(answer: Callable[[socket.socket], None], connection: socket.socket) -> None:
        with connection:
            try:
                answer(connection)
            except OSError:  # The process has ended.
                pass


@pytest.fixture(scope="module")
def plain_training(tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.CompletedProcess[str]]:
    """Training by itself."""
    home = Home(tmp_path_factory.mktemp("plain"))
    done = train(home, PROBE="0")
    assert done.returncode == 0 and done.stdout.count("\n") == STEPS, done.stderr
    yield done
    home.close()


@pytest.mark.parametrize(
    "answer",
    [
        reads_nothing,
        resets,
        speaks_something_else,
        # Between one that answers nothing and one that reads nothing.
        pytest.param(says_nothing, marks=pytest.mark.extended),
        pytest.param(reads_slowly, marks=pytest.mark.extended),
    ],
)
def test_a_collector_that_is_none_changes_nothing(
    home: Home, plain_training: subprocess.CompletedProcess[str], answer: Callable[[socket.socket], None]
) -> None:
    other = Other(home, answer)
    done = train(home, PROBE="1", PROBE_COLLECTOR=f"unix:{other.path}")
    other.listener.close()
    assert (done.returncode, done.stdout) == (0, plain_training.stdout), done.stderr
    assert other.met > 0, "it was never asked"
    ours = [line for line in done.stderr.splitlines() if line.startswith("probe: ")]
    assert done.stderr.splitlines() == ours and len(ours) <= 2, done.stderr


def test_a_collector_that_works_changes_nothing(home: Home, plain_training: subprocess.CompletedProcess[str]) -> None:
    _, address = home.serve("same")
    done = train(home, PROBE="1", PROBE_COLLECTOR=address, PROBE_RUN="same")
    assert (done.returncode, done.stdout) == (0, plain_training.stdout), done.stderr
    assert home.query("same", "SELECT COUNT(*) AS n FROM python.steps") == [{"n": STEPS}]


def test_an_exit_without_goodbye_keeps_its_status(home: Home, plain_training: subprocess.CompletedProcess[str]) -> None:
    _, address = home.serve("gone")
    done = train(home, "exit", PROBE="1", PROBE_COLLECTOR=address, PROBE_RUN="gone")
    assert (done.returncode, done.stdout) == (7, plain_training.stdout), done.stderr
    wait_for("it to be lost", lambda: home.query("gone", "SELECT state FROM probe.agents") == [{"state": "lost"}])
    # Nothing flushed them at the end; what the background thread had sent before is there, from the first step on.
    rows = home.query("gone", "SELECT COUNT(*) AS n, MAX(step) AS last FROM python.steps")[0]
    assert rows["n"] == 0 or rows["n"] == rows["last"] + 1


def test_an_exit_while_threads_are_in_modules_keeps_its_status(home: Home) -> None:
    _, address = home.serve("within")
    settings = home.environment(PROBE="1", PROBE_COLLECTOR=address, PROBE_RUN="within")
    program = ["python", str(SCRIPTS / "ends_within_modules.py")]
    done = subprocess.run(program, env=settings, capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stdout) == (0, "ended\n"), done.stderr
    assert home.query("within", "SELECT COUNT(DISTINCT thread) AS threads FROM python.torch_trace") == [{"threads": 8}]


@pytest.mark.parametrize("how", ["range", pytest.param("each", marks=pytest.mark.extended)])
def test_a_program_that_closes_all_descriptors_finds_in_its_files_what_it_wrote(home: Home, how: str) -> None:
    directory = home.directory / "files"
    directory.mkdir()
    program = ["python", str(SCRIPTS / "closes_descriptors.py"), how, str(directory)]
    plain = home.spawn(*program, PROBE="0")
    (directory / "seen").touch()
    assert plain.wait(PATIENCE) == 0, plain.err_path.read_text()  # type: ignore[attr-defined]
    for file in directory.iterdir():
        file.unlink()
    _, address = home.serve("closes")
    trainer = home.spawn(*program, PROBE="1", PROBE_COLLECTOR=address, PROBE_RUN="closes")
    # Steps from before and from after, and those of a thread that began after.
    count = "SELECT COUNT(*) AS n, COUNT(DISTINCT step) AS steps FROM python.steps"
    wait_for("all steps", lambda: home.query("closes", count) == [{"n": 60, "steps": 60}])
    agent = home.query("closes", "SELECT state, problem FROM probe.agents")[0]
    assert agent["state"] == "live" and "closed their file" in agent["problem"]
    threads = "SELECT COUNT(DISTINCT thread) AS n FROM python.torch_trace WHERE stage = 'forward'"
    assert home.query("closes", threads) == [{"n": 2}]
    (directory / "seen").touch()
    assert trainer.wait(PATIENCE) == 0, trainer.err_path.read_text()  # type: ignore[attr-defined]
    assert trainer.out_path.read_text() == plain.out_path.read_text()  # type: ignore[attr-defined]
    (directory / "seen").unlink()
    files = {file.name: file.read_text() for file in directory.iterdir()}
    assert files == {str(number): f"{number}\nthe end\n" for number in range(300)}
    wait_for("its end", lambda: home.query("closes", "SELECT state FROM probe.agents") == [{"state": "ended"}])


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.extended)])
def test_a_signal_ends_it_as_without_us(home: Home, number: signal.Signals) -> None:
    _, address = home.serve("ended")
    ends = [end(home, number, PROBE=value, PROBE_COLLECTOR=address, PROBE_RUN="ended") for value in ("0", "1")]
    assert ends[0] == ends[1] != 0


def end(home: Home, number: signal.Signals, **settings: str) -> int:
    """Trains, ends it by a signal when all its steps have arrived (if it is watched), and gives its status."""
    trainer = home.spawn(*TRAIN, "wait", **settings)
    said = trainer.err_path  # type: ignore[attr-defined]
    wait_for("the training", lambda: "trained" in said.read_text())
    if settings["PROBE"] == "1":
        count = "SELECT COUNT(*) AS n FROM python.steps"
        wait_for("all steps", lambda: home.query("ended", count) == [{"n": STEPS}])
    trainer.send_signal(number)
    return trainer.wait(PATIENCE)
