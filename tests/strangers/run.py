"""Runs the programs of manifest.py plain and under `probe run`, and compares: `make strangers`.

    tests/strangers/run.py [--page docs/compatibility.md] [NAME ...]

Output, exit status and losses must be the same to the last digit, and what is recorded as the manifest says. With --page it
also writes what it saw. Packages are fetched once, into a directory of the user's cache.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import hashlib
import importlib.metadata
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile

from manifest import PROGRAMS, Program

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BIN = pathlib.Path(sys.executable).parent
REQUIREMENTS = HERE / "requirements.txt"
PATIENCE = 300.0  # seconds that a program may take on a loaded machine


#: What is not recorded as one would expect, or differs, in other ways to train.
LIMITS = """
## Limits

- A process has one count of steps. Where several trainings run in it at once (threads, tasks of asyncio), the steps of one
  optimizer end the steps of all: four trainings of 6 steps in three threads were 11 steps, and all 24 steps of optimizers had rows.
- Where training goes on with another optimizer while the first one is alive, the first steps of the other have no row of their own,
  because it could belong to the same loop: two, and up to 64 if one of them had made fewer than four steps or if the first steps again.
- A model that is first called right after `torch.export` or `torch.fx.symbolic_trace` is not seen in that step, which gets no row.
  A step in which `torch.compile` compiles a function with the backend aot_eager, or a whole training step with inductor, has no row either.
  The step of an optimizer that was compiled with aot_eager is shown as a forward pass of a module `<lambda>`.
- Modules that a compiled function calls have no rows of their own.
- Validation that asks for gradients of its inputs (forces of a molecule, residuals of a PINN, attributions) outside of the module's own
  forward is told from training where `torch.autograd.grad` is called in eval mode, with batches of a DataLoader, and an optimizer has
  stepped. Elsewhere it counts as training, because an attack on the inputs is part of adversarial training.
- Without a DataLoader, the last validation of a model counts as training where another model is trained next (folds, trials of a sweep).
  The first batches of an epoch that are called without gradients to be called again with them (GradCache) count as validation.
- A warning that torch gives within `clip_grad_norm_` names a line of the agent, which calls it, and a filter of warnings by module does
  not match it. Tracebacks of errors within `clip_grad_norm_`, `torch.save` and the `step` of an optimizer have a line of the agent among
  them.
- `sys.excepthook` and `threading.excepthook` are the agent's. They have the names of the hooks that they replaced, and call these.
- The first step of a forked child without a process group has no row, because nothing but an optimizer's step shows that it trains.
- From 3.12 on, Python warns at `os.fork()` that a process has several threads. The agent has some, so the warning also comes where the
  program alone would have only one thread.
- Training in a function that was registered with `atexit` before the first call of a module is not recorded.
- A process that becomes another program by `os.execv` keeps its process id, so the steps of both have the same `pid`. The first program
  is "lost" in `probe.agents`.
- Training that goes on in the background when the command of `probe run` has ended is recorded until then. The event `command end` says
  how many processes that were.
- fastai's optimizers are none of torch's: its steps are backward passes, and the optimizer's time is in `other_time`.
"""


class Missing(Exception):
    """A package can't be had."""


@dataclasses.dataclass
class Ran:
    """A program that was run twice."""

    program: Program
    #: In words; empty where all is as it should be.
    differences: list[str] = dataclasses.field(default_factory=list)
    steps: list[int] = dataclasses.field(default_factory=list)
    kinds: list[str] = dataclasses.field(default_factory=list)
    stages: list[str] = dataclasses.field(default_factory=list)
    modules: int = 0


def site() -> pathlib.Path:
    """The directory of the packages that the programs need. Packages are fetched when they are missing."""
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "probe-strangers"
    sources = sorted({program.package for program in PROGRAMS if program.sources})
    wanted = hashlib.sha256(REQUIREMENTS.read_bytes() + " ".join([sys.version, *sources]).encode()).hexdigest()[:16]
    directory = cache / wanted
    if not directory.exists():
        cache.mkdir(parents=True, exist_ok=True)
        being_made = tempfile.mkdtemp(dir=cache)
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        done = subprocess.run(
            [*install, "--target", being_made, "-r", str(REQUIREMENTS)], capture_output=True, text=True, timeout=900
        )
        if done.returncode:
            shutil.rmtree(being_made)
            raise Missing(f"pip can't fetch {REQUIREMENTS.name}: {done.stderr.strip().splitlines()[-1:]}")
        for package in sources:
            fetch_source(package, pathlib.Path(being_made))
        try:
            os.rename(being_made, directory)
        except OSError:  # Another run was faster.
            shutil.rmtree(being_made)
    return directory


def fetch_source(package: str, into: pathlib.Path) -> None:
    """A package's source distribution, as the directory sources/PACKAGE. It isn't installed."""
    with tempfile.TemporaryDirectory(dir=into) as downloaded:
        fetch = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        done = subprocess.run(
            [*fetch, "--no-binary", package, "--dest", downloaded, f"{package}=={version(package)}"],
            capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        if done.returncode:
            shutil.rmtree(into)
            raise Missing(f"pip can't fetch the sources of {package}: {done.stderr.strip().splitlines()[-1:]}")
        (archive,) = pathlib.Path(downloaded).iterdir()
        shutil.unpack_archive(archive, f"{downloaded}/unpacked")
        (top,) = pathlib.Path(downloaded, "unpacked").iterdir()
        (into / "sources").mkdir(exist_ok=True)
        top.rename(into / "sources" / package)


def version(package: str) -> str:
    pinned = dict(line.split("==") for line in REQUIREMENTS.read_text().split() if "==" in line)
    return pinned.get(package) or importlib.metadata.version(package)


def compare(program: Program) -> Ran:
    """Runs it twice, side by side, and says what is not as it should be."""
    ran = Ran(program)
    with tempfile.TemporaryDirectory(prefix="probe-") as directory:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PROBE")}
        environment = {
            **kept,
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "PROBE_HOME": f"{directory}/state",
            "PROBE_RUNTIME_DIR": f"{directory}/run",
            "PROBE_DETAIL": "every-step",
            "OMP_NUM_THREADS": "1",
            "NO_COLOR": "1",
            **dict(program.environment),
        }
        if not program.always:
            environment["PYTHONPATH"] = str(site())
            environment["STRANGERS_SOURCES"] = str(site() / "sources")
        pathlib.Path(directory, "run").mkdir(mode=0o700)

        def start(*before: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [*before, *program.command], env=environment, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True,
                text=True, timeout=PATIENCE,
            )  # fmt: skip

        def query(sql: str) -> list[dict]:
            done = subprocess.run(
                [str(BIN / "probe"), "it", "query", "--format", "json", sql],
                env=environment, capture_output=True, text=True, timeout=PATIENCE,
            )  # fmt: skip
            if done.returncode:
                ran.differences.append(f"{sql}: {done.stderr}")
                return []
            return json.loads(done.stdout)

        with concurrent.futures.ThreadPoolExecutor() as both:
            plain_run = both.submit(start)
            try:
                watched = both.submit(start, str(BIN / "probe"), "run", "--name", "it", "--").result()
                plain = plain_run.result()
            except subprocess.TimeoutExpired as error:
                ran.differences.append(f"took longer than {PATIENCE:g} s: {' '.join(error.cmd)}")
                return ran
        statuses = {plain.returncode, watched.returncode if watched.returncode < 128 else 128 - watched.returncode}
        if statuses != {program.status}:
            said = (plain.stderr[-1500:], watched.stderr[-1500:])
            ran.differences.append(f"exit status {plain.returncode} plain, {watched.returncode} watched: {said}")
        alone, beside = (re.sub(program.times or "$^", "(time)", done.stdout) for done in (plain, watched))
        if alone != beside:
            pairs = zip(alone.splitlines(), beside.splitlines())
            first = next(((a, b) for a, b in pairs if a != b), "one is longer")
            ran.differences.append(f"stdout differs: {first}")
        recorded(ran, query)
    return ran


def recorded(ran: Ran, query) -> None:
    """Compares what is in the run's directory with what the manifest says."""
    program = ran.program
    agents = query("SELECT pid, step, problem FROM probe.agents ORDER BY pid")
    steps = query(
        "SELECT pid, COUNT(*) AS n, MIN(step) AS first, MAX(kind) AS kind FROM python.steps GROUP BY pid ORDER BY pid"
    )
    trace = query("SELECT stage, module, COUNT(*) AS n FROM python.torch_trace GROUP BY stage, module")
    lost = query("SELECT table_name, reason, rows FROM probe.drops")
    ran.steps, ran.kinds = [row["n"] for row in steps], sorted({row["kind"] for row in steps})
    ran.stages = sorted({row["stage"] for row in trace})
    modules = {row["module"] for row in trace}
    ran.modules = len(modules)

    def expect(what: str, seen: object, wanted: object) -> None:
        if seen != wanted:
            ran.differences.append(f"{what}: {seen}, not {wanted}")

    expect("agents", len(agents), program.agents)
    expect("problems", [agent["problem"] for agent in agents if agent["problem"]], [])
    if program.at_least:
        expect("steps are enough", [n >= program.steps for n in ran.steps], [True] * program.agents)
    else:
        expect("steps", ran.steps, [program.steps] * program.agents)
    expect("kinds", ran.kinds, [program.kind])
    expect("stages", ran.stages, sorted(program.stages))
    if program.module and program.module not in modules:
        ran.differences.append(f"no rows of {program.module}; there are {sorted(map(str, modules))[:40]}")
    expect("lost rows", lost, [])


def page(all_ran: list[Ran]) -> str:
    """docs/compatibility.md."""
    lines = [
        "# Compatibility",
        "",
        "These training programs, loops and models come from other projects (`tests/strangers/manifest.py`). Each runs plain and",
        "under `probe run`, on a CPU, with every step in detail. Its output (every loss to the last digit) and its exit status must",
        "be the same, no row may be lost, no problem may be reported, and the rows must be those that the manifest expects.",
        "`make strangers` writes this page.",
        "",
        f"This table has {len(all_ran)} of {len(PROGRAMS)} programs, run with Python {sys.version.split()[0]}, torch {version('torch')}.",
        "",
        "| program | from | licence | steps | recorded | command | differences |",
        "|---|---|---|---|---|---|---|",
    ]
    for ran in all_ran:
        program = ran.program
        steps = " and ".join(map(str, ran.steps)) or "none"
        about = (
            "; ".join([text for text in (program.lacks, *ran.differences) if text])
            .replace("\n", " ")
            .replace("|", "\\|")
        )
        lines.append(
            f"| {program.name} | {program.package} {version(program.package)}: {program.origin} | {program.licence} | {steps} "
            f"({', '.join(ran.kinds)}) | {', '.join(ran.stages)}; {ran.modules} names | `{program.how}` | {about[:400]} |"
        )
    return "\n".join(lines) + "\n" + LIMITS


def main() -> int:
    options = argparse.ArgumentParser()
    options.add_argument("--page", type=pathlib.Path, help="where to write what was seen")
    options.add_argument("names", nargs="*", help="only programs with this in their name or command")
    given = options.parse_args()
    # Started by a shell that ignores the signal (a script's `&`), this process would make the programs ignore it too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    chosen = [p for p in PROGRAMS if not given.names or any(name in f"{p.name} {p.how}" for name in given.names)]
    all_ran = []
    for program in chosen:
        ran = compare(program)
        all_ran.append(ran)
        print(
            f"{'DIFFERS' if ran.differences else 'same':8}{program.name}: steps {ran.steps} {ran.kinds} {ran.stages}",
            flush=True,
        )
        for difference in ran.differences:
            print(f"        {difference}", flush=True)
        if given.page:
            given.page.write_text(page(all_ran))
    return 1 if any(ran.differences for ran in all_ran) else 0


if __name__ == "__main__":
    sys.exit(main())
