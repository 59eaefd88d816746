"""The samples of other tools' traces have the numbers that those tools computed for them."""

from __future__ import annotations

import re
import subprocess

from conftest import BIN, PROBE, ROOT


def test_samples_of_traces_have_the_numbers_of_other_tools() -> None:
    samples = str(ROOT / "tests/samples/kineto")
    command = [str(BIN / "python"), str(ROOT / "tests/traces.py"), "--probe", PROBE, "--traces", samples]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    counts = re.search(r"^(\d+) numbers: .* 0 differ$", done.stdout, re.MULTILINE)
    assert counts and int(counts[1]) > 100, done.stdout
