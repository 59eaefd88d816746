"""Training behind what people put before it: shells, scripts, and commands that run commands."""

from __future__ import annotations

import pathlib
import shlex
import sys

import pytest

from conftest import BIN, PATIENCE, SCRIPTS, Home

TRAIN = f"python {SCRIPTS / 'losses.py'} well"
CONDA = f"python {SCRIPTS / 'like_conda_run.py'}"
SCRIPT = f"""set -e
export MORE=1
{TRAIN} script
"""

#: Commands as a user types them. The last word of the training's command is the name here.
WRAPPERS = {
    "exec": f"sh -c 'exec {TRAIN} exec'",
    "before": f"sh -c '{TRAIN} before; echo done'",
    "script": "bash script.sh",
    "conda": f"{CONDA} {TRAIN} conda",
    "uv": f"uv run --offline --no-project --python {BIN}/python {TRAIN} uv",
}
MORE_WRAPPERS = {
    "module": f"cd {SCRIPTS} && python -m losses well module",
    "nohup": f"nohup {TRAIN} nohup",
    "timeout": f"timeout 100 {TRAIN} timeout",
    "variables": f"env MORE=1 {TRAIN} variables",
    "session": f"setsid --wait nice -n 1 {TRAIN} session",
    "arguments": f"echo arguments | xargs {TRAIN}",
    "isolated": f"python -I {SCRIPTS / 'losses.py'} well isolated",
    "passed": f'env -i PATH="$PATH" PROBE=1 PROBE_COLLECTOR="$PROBE_COLLECTOR" PROBE_RUN="$PROBE_RUN" {TRAIN} passed',
}


@pytest.mark.parametrize(
    "wrappers",
    [
        pytest.param(WRAPPERS, id="shells, conda and uv"),
        pytest.param(MORE_WRAPPERS, id="others", marks=pytest.mark.extended),
    ],
)
def test_training_behind_a_wrapper_is_recorded(home: Home, tmp_path: pathlib.Path, wrappers: dict[str, str]) -> None:
    (tmp_path / "script.sh").write_text(SCRIPT)
    # All at once: a process takes seconds to import torch. `wait` with a number returns that one's status.
    started = "\n".join(f'( {command} ) > {name}.txt & all="$all $!"' for name, command in wrappers.items())
    script = f"cd {shlex.quote(str(tmp_path))}\nall=\n{started}\nfor one in $all; do wait $one || exit; done"
    run = home.train("sh", "-c", script, UV_CACHE_DIR=str(tmp_path / "uv"))
    run.finish()
    losses = {name: (tmp_path / f"{name}.txt").read_text().split() for name in wrappers}
    steps = {name: len([loss for loss in of if "p-" in loss or "p+" in loss]) for name, of in losses.items()}
    assert steps == dict.fromkeys(wrappers, 256)
    recorded = run.query(
        "SELECT a.command, a.exit_status, COUNT(*) AS steps, COUNT(s.backward_time) AS backward FROM probe.agents a "
        "JOIN python.steps s ON a.pid = s.pid GROUP BY a.command, a.exit_status"
    )
    by_name = {row.pop("command").split()[-1].strip("'"): row for row in recorded}
    assert by_name == {name: {"exit_status": 0, "steps": 256, "backward": 256} for name in wrappers}
    assert run.query("SELECT COUNT(*) AS n FROM probe.agents") == [{"n": len(wrappers)}], "the wrappers are none"


def test_what_runs_without_the_variables_is_told_which_it_needs(home: Home) -> None:
    run = home.train("sh", "-c", 'env -i PATH="$PATH" python -c "import torch"; exit 3')
    assert run.process.wait(PATIENCE) == 3
    # The message also names the process, where it lived until the launcher looked.
    assert "so nothing was recorded" in run.errors
    assert "hint: " in run.errors and "PROBE, PROBE_COLLECTOR and PROBE_RUN" in run.errors


def test_a_program_that_took_the_import_hook_out_is_named(home: Home) -> None:
    script = (
        "import sys\n"
        "sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__module__ != 'probe_agent.activation']\n"
        "import torch\n"
        "torch.nn.Linear(2, 2)(torch.ones(2)).sum().backward()"
    )
    run = home.train(sys.executable, "-c", script)
    run.finish()
    assert "imported torch, and had taken the agent's import hook out of sys.meta_path" in run.errors
