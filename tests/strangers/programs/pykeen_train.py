"""`pykeen train transe`, the program that the package has, on the knowledge graph that it brings along (Nations)."""

import contextlib
import json
import os
import pathlib
import runpy
import sys
import tempfile

import common

common.begin()
with tempfile.TemporaryDirectory() as directory:
    os.environ["PYSTOW_HOME"] = f"{directory}/data"
    sys.argv = [
        "pykeen", "train", "transe", "--dataset", "nations", "--number-epochs", "2", "--batch-size", "256", "--device", "cpu",
        "--random-seed", "1", "--silent", "--output-directory", f"{directory}/out",
    ]  # fmt: skip
    with contextlib.suppress(SystemExit):  # click's, with status 0; an error of the program is none.
        runpy.run_module("pykeen", run_name="__main__", alter_sys=True)
    results = json.loads(pathlib.Path(directory, "out", "results.json").read_text())
    for loss in results["losses"]:
        common.said("loss", loss)
