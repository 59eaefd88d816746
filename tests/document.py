"""Runs a checker of the performance document against a live two-rank run: `tests/document.py CHECKER`.

The checker takes an endpoint and the binary; this starts the run, waits until it has made more than 210 steps, and
ends with the checker's exit status.
"""

import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "e2e"))

from conftest import PROBE, Home


def main() -> int:
    with tempfile.TemporaryDirectory() as directory:
        home = Home(pathlib.Path(directory))
        try:
            run = home.train(
                "torchrun", "--nproc-per-node", "2", "examples/train_gpt.py", "--steps", "100000", PROBE_DETAIL="auto"
            )
            run.wait_for_step(212, ranks=2)
            checker = [sys.executable, sys.argv[1], "gpt", "--probe", PROBE]
            return subprocess.run(checker, env=home.environment()).returncode
        finally:
            home.close()


if __name__ == "__main__":
    sys.exit(main())
