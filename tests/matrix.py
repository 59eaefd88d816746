"""The agent on other interpreters and other releases of torch: `make test-matrix`, or `tests/matrix.py 3.12 3.9`.

One wheel serves them all (abi3). For each entry whose interpreter is at hand (on PATH, or among pyenv's), a throw-away
environment gets that torch from PyPI and the wheel, and the recording tests run in it. That takes six gigabytes of disk
and some minutes each, one after the other. Frameworks' loops are tested with the current torch only (`make test`).
"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
#: Interpreter, and what pip installs as torch: the current one, the last there is for an older Python, and one that is two
#: years older. The first and the last release on which autograd.py allows RecordFunction must be among those that passed
#: here; torch_layout.py compares what lies between.
MATRIX = [
    ("3.9", "torch==2.8.0"),
    ("3.10", "torch==2.14.1"),
    ("3.11", "torch==2.5.1"),
    ("3.12", "torch==2.15.0"),
    ("3.13", "torch==2.15.0"),
    ("3.14", "torch==2.15.0"),
]
TESTS = ["python_agent/tests", "--deselect", "python_agent/tests/test_recording_frameworks.py"]


def interpreter(version: str) -> str | None:
    """Where Python `version` is."""
    home = pathlib.Path(os.environ.get("PYENV_ROOT", pathlib.Path.home() / ".pyenv")) / "versions"
    known = sorted(home.glob(f"{version}.*/bin/python{version}"))
    return str(known[-1]) if known else shutil.which(f"python{version}")


def test(python: str, torch: str, wheel: pathlib.Path) -> int:
    """Runs the tests in an environment of their own; pytest's status, or that of the command that failed before it."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as directory:
        own = pathlib.Path(directory) / "bin" / "python"
        install = [str(own), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-cache-dir"]
        for command in (
            [python, "-m", "venv", directory],
            [*install, torch, "numpy", "pyarrow", "pytest"],
            [*install, "--no-deps", str(wheel)],
        ):
            status = subprocess.run(command).returncode
            if status:
                return status
        return subprocess.run([str(own), "-m", "pytest", "-q", "-x", *TESTS], cwd=ROOT).returncode


def main() -> int:
    wanted = sys.argv[2:]
    wheels = sorted(pathlib.Path(sys.argv[1]).glob("*.whl"))
    if not wheels:
        print(f"no wheel in {sys.argv[1]}; hint: make setup builds it", file=sys.stderr)
        return 2
    failed = []
    for version, torch in MATRIX:
        if wanted and version not in wanted:
            continue
        name = f"Python {version}, {torch}"
        python = interpreter(version)
        if python is None:
            print(f"{name}: not at hand", flush=True)
            continue
        print(f"{name}: {python}", flush=True)
        status = test(python, torch, wheels[-1])
        print(f"{name}: {'passed' if status == 0 else f'FAILED ({status})'}", flush=True)
        failed += [name] if status else []
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
