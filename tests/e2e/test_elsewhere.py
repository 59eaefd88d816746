"""Training on one machine, its collector on another, and the client on a third: over TLS, with a token each."""

from __future__ import annotations

import pathlib
import re
import subprocess

import pytest

from conftest import Home, wait_for


def token(home: Home, name: str, scopes: str, *more: str) -> str:
    path = home.directory / f"{name}.token"
    made = home.probe("token", "make", name, "--scope", scopes, "-o", str(path), *more)
    assert made.returncode == 0, made.stderr
    return str(path)


def serve(home: Home) -> str:
    """A collector that is reached over TLS alone; its address."""
    process = home.spawn(
        "probe", "serve", "--name", "gpt", "--listen", "127.0.0.1:0", "--tls-self-signed", "--allow-eval"
    )
    said = wait_for(
        "the address", lambda: re.search(r"(127\.0\.0\.1:\d+)[\s\S]*train with", process.err_path.read_text())
    )
    return said[1]


@pytest.fixture
def trainer(tmp_path: pathlib.Path) -> Home:
    """Another machine's home and sockets: nothing is found there by looking."""
    (tmp_path / "trainer").mkdir()
    return Home(tmp_path / "trainer")


def test_a_run_sends_over_tls_and_is_asked_from_afar(home: Home, trainer: Home) -> None:
    sends = token(home, "trainer", "ingest", "--tls-self-signed")
    asks = token(home, "laptop", "query,eval", "--tls-self-signed")
    address = serve(home)

    def probe(*words: str) -> subprocess.CompletedProcess[str]:
        return trainer.probe(address, *words, PROBE_TOKEN_FILE=asks)

    def train(steps: int, **more: str) -> subprocess.Popen[str]:
        there = {"PROBE": "1", "PROBE_COLLECTOR": address, "PROBE_TOKEN_FILE": sends, **more}
        return trainer.spawn("python", "examples/train_gpt.py", "--steps", str(steps), "--pause", "0.05", **there)

    try:
        # The process decides too which clients may run code in it.
        open_to_all = train(1_000_000, PROBE_EVAL="tcp")
        newest = ("query", "--format", "csv", "SELECT MAX(step) >= 5 FROM python.steps")
        wait_for("five steps", lambda: "true" in probe(*newest).stdout)
        done = probe("eval", "print(batch_size * 10)")
        assert (done.returncode, done.stdout) == (0, "160\n"), done.stderr
        open_to_all.terminate()
        open_to_all.wait()

        short = train(20)
        assert short.wait() == 0, short.err_path.read_text()
        assert "probe" not in short.out_path.read_text()
        # Its last step too: it ended only when the collector had everything.
        count = f"SELECT COUNT(DISTINCT step) AS steps, MAX(step) AS last FROM python.steps WHERE pid = {short.pid}"
        assert probe("query", "--format", "csv", count).stdout == "steps,last\n20,19\n"

        closed = train(1_000_000)
        own = ("query", "--format", "csv", f"SELECT COUNT(*) > 0 FROM python.steps WHERE pid = {closed.pid}")
        wait_for("a step", lambda: "true" in probe(*own).stdout)
        denied = probe("eval", "print(1)")
        assert denied.returncode == 4 and "PROBE_EVAL=tcp" in denied.stderr, denied
        # The sender's token only allows sending.
        refused = trainer.probe(address, "query", "SELECT 1", PROBE_TOKEN_FILE=sends)
        assert refused.returncode == 4, refused
    finally:
        trainer.close()
