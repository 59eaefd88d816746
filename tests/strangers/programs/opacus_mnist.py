"""opacus' own examples/mnist.py, unmodified: beside it only files of random pixels in MNIST's format."""

import pathlib
import runpy
import struct
import sys
import tempfile

import common
import numpy
import opacus

common.begin()
script = pathlib.Path(opacus.__file__).resolve().parent.parent / "examples" / "mnist.py"
with tempfile.TemporaryDirectory() as directory:
    raw = pathlib.Path(directory) / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for part, count in (("train", 128), ("t10k", 64)):
        pixels = numpy.random.randint(0, 255, (count, 28, 28), dtype="uint8")
        (raw / f"{part}-images-idx3-ubyte").write_bytes(struct.pack(">4i", 2051, count, 28, 28) + pixels.tobytes())
        labels = numpy.random.randint(0, 10, count, dtype="uint8")
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">2i", 2049, count) + labels.tobytes())
    sys.argv = [str(script), "--device", "cpu", "-b", "16", "-n", "1", "--data-root", directory]
    import os

    os.chdir(directory)
    runpy.run_path(str(script), run_name="__main__")
