"""opacus' own examples/mnist.py, unmodified: beside it only files of random pixels in MNIST's format."""

import os
import pathlib
import runpy
import sys
import tempfile

import common
import opacus

common.begin()
script = pathlib.Path(opacus.__file__).resolve().parent.parent / "examples" / "mnist.py"
with tempfile.TemporaryDirectory() as directory:
    common.mnist(pathlib.Path(directory) / "MNIST" / "raw")
    sys.argv = [str(script), "--device", "cpu", "-b", "16", "-n", "1", "--data-root", directory]
    os.chdir(directory)
    runpy.run_path(str(script), run_name="__main__")
