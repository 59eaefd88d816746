"""Programs that are started as people start them, beside a .pth file as an installed wheel has it."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
import textwrap

import probe_agent
from recording_support import QUICK_START

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
    """A directory for scripts, and an interpreter that reads our .pth file as an installed wheel's is read.

    :param quick: have programs start sooner, by tests/quick_start. Not where the imports themselves are tested."""

    def __init__(self, directory: pathlib.Path, quick: bool = False) -> None:
        self.directory = directory
        self.path = [str(directory), str(PACKAGE.parent), *([QUICK_START] if quick else [])]
        site = directory / "site"
        site.mkdir()
        pth = PACKAGE.parent / "probe_agent.data/platlib/probe_agent.pth"
        shutil.copy(pth if pth.exists() else PACKAGE.parent / "probe_agent.pth", site)
        # Where tests run without an installed wheel; with one, the file is read twice, which must do no harm.
        own = f"import site; site.addsitedir({str(site)!r})"
        (directory / "sitecustomize.py").write_text("import quick_start\n" * quick + own)

    def python(self, code: str, *arguments: str, file: str = "script.py", **environment: str) -> str:
        """Runs a script to exit status 0 and returns its output; its stderr is in `errors`."""
        path = self.directory / file
        path.write_text(textwrap.dedent(code))
        kept = {k: v for k, v in os.environ.items() if not k.startswith("PROBE")}
        done = subprocess.run(
            [sys.executable, *arguments, str(path)],
            env={
                **kept,
                "PYTHONPATH": os.pathsep.join(self.path),
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
