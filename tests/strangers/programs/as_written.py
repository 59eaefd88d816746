"""A training script as its authors wrote it: `as_written.py SCRIPT [ARGUMENT ...]`.

SCRIPT is a file of a source distribution, whose path begins with the package's name, or a module of an installed package. It is
not changed. It has seeds and a directory to work in. In that, in `data` there and in `../data`, where such scripts look for
MNIST, are files of random pixels. What it leaves there in files that TELL names (a pattern) is printed at the end: of tensors
their sum, else the text.
"""

import os
import pathlib
import runpy
import sys
import tempfile

import common
import torch


def told(path: pathlib.Path) -> None:
    if path.suffix in (".pt", ".pth"):
        common.weights(torch.load(path))
    else:
        print(path.read_text(), flush=True)


common.begin()
sys.argv = sys.argv[1:]
with tempfile.TemporaryDirectory() as directory:
    common.mnist(pathlib.Path(directory, "data", "MNIST", "raw"))
    pathlib.Path(directory, "work").mkdir()
    os.chdir(f"{directory}/work")
    pathlib.Path("data").symlink_to("../data")
    pathlib.Path("MNIST").symlink_to("../data/MNIST")
    if sys.argv[0].endswith(".py"):
        script = pathlib.Path(os.environ["STRANGERS_SOURCES"]) / sys.argv[0]
        # What Python does for a script.
        sys.argv[0], sys.path[0] = str(script), str(script.parent)
        runpy.run_path(str(script), run_name="__main__")
    else:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    for path in sorted(pathlib.Path().glob(os.environ.get("TELL", "nothing"))):
        told(path)
