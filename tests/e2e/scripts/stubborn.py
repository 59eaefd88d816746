"""Trains until a file says otherwise. Argument: a directory in which files are commands.

`sleep`: stands in the middle of a step until the file is gone. `gil`: a FIFO; keeps the GIL until something is written to
it, which is called `kept` then. `end`: ends.
"""

import ctypes
import os
import pathlib
import sys
import time

import torch

wishes = pathlib.Path(sys.argv[1])


def wanted(wish: str) -> bool:
    return (wishes / wish).exists()


def stand() -> None:
    while wanted("sleep"):
        time.sleep(0.05)


def keep_the_gil() -> None:
    # Functions of the C library that are called with the GIL, as a careless extension does.
    library, buffer = ctypes.PyDLL(None), ctypes.create_string_buffer(1)
    fifo = os.open(wishes / "gil", os.O_RDWR)
    library.rename(os.fsencode(wishes / "gil"), os.fsencode(wishes / "kept"))
    library.read(fifo, buffer, 1)
    os.close(fifo)


torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
x = torch.randn(8, 16)
while not wanted("end"):
    optimizer.zero_grad()
    loss = model(x).square().mean()
    stand()
    if wanted("gil"):
        keep_the_gil()
    loss.backward()
    optimizer.step()
    time.sleep(0.02)
