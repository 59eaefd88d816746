"""The example notebook runs from its first cell to its last, and shows what its text speaks of."""

from __future__ import annotations

import os

import nbformat
import pytest
from nbclient import NotebookClient
from reader import environment_of

from conftest import BIN, PROBE, ROOT, Home

PATH = ROOT / "examples" / "investigate.ipynb"


def shown(cell: nbformat.NotebookNode) -> str:
    """The output of a cell, as text."""
    outputs = cell.get("outputs", [])
    return "".join(output.get("text", "") + output.get("data", {}).get("text/plain", "") for output in outputs)


@pytest.mark.extended
def test_the_investigation_runs_to_its_end(home: Home) -> None:
    notebook = nbformat.read(PATH, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs for cell in cells), "it is kept without answers"
    variables = {**os.environ, **home.environment(), "PROBE_BIN": PROBE, "PATH": f"{BIN}:{os.environ['PATH']}"}
    with environment_of(home):
        NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(PATH.parent)}}).execute(env=variables)
    answers = {cell.source: shown(cell) for cell in cells}
    for source, answer in answers.items():
        print(f">>> {source}\n{answer}\n")
    for begins, says in {
        'run["python.steps"]': ["'duration': 's'"],
        "parts": ["data", "forward", "backward", "optimizer", "comm", "other"],
        "modules = ": ["module", "own", "p95", "layers."],
        "slowest": ["step", "rank", "stage", "duration"],
        "ranks = ": ["busy", "waited", "lead", "last_share"],
        "run.collectives()": ["all_reduce"],
        "run.memory(": ["cpu", "rss"],
        "%%probe_eval": ["parameters"],
        "training.terminate": ["'ended'"],
        "while run.sql": ["where a step goes"],
        "compared = ": ["whole step"],
        "changes = ": ["module"],
    }.items():
        (answer,) = (answer for source, answer in answers.items() if source.startswith(begins))
        assert all(word in answer for word in says), f"{begins}: {answer}"
    pictures = [cell for cell in cells if any("<svg" in str(output.get("data")) for output in cell.outputs)]
    assert len(pictures) == 1


TRAINING = """import nbformat
from nbclient import NotebookClient

cells = [
    "import torch\\nmodel = torch.nn.Linear(4, 1)\\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)",
    "for _ in range(5):\\n    optimizer.zero_grad()\\n    model(torch.ones(2, 4)).sum().backward()\\n    optimizer.step()",
]
notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
NotebookClient(notebook, timeout=120).execute()
"""


def test_training_in_a_kernel_is_recorded(home: Home) -> None:
    program = home.directory / "kernel.py"
    program.write_text(TRAINING)
    run = home.train("python", str(program))
    run.finish()
    steps = run.query("SELECT COUNT(*) AS steps, COUNT(DISTINCT pid) AS processes FROM python.steps")
    assert steps == [{"steps": 5, "processes": 1}], run.errors
