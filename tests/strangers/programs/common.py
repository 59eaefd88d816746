"""Shared parts of the drivers: seeds, and every weight to the last bit on stdout."""

from __future__ import annotations

import hashlib
import pathlib
import random
import struct
from typing import Any

import numpy
import torch


def begin() -> None:
    random.seed(0)
    numpy.random.seed(0)
    torch.manual_seed(0)
    torch.set_num_threads(1)


def digits(samples: int = 32) -> tuple[torch.Tensor, torch.Tensor]:
    """Images of 8 x 8 and their classes, which follow from them."""
    images = torch.randn(samples, 1, 8, 8)
    return images, images.flatten(1)[:, :4].argmax(1)


def mnist(raw: pathlib.Path) -> None:
    """Random pixels and classes, in files of MNIST's format and names."""
    raw.mkdir(parents=True)
    for part, count in (("train", 128), ("t10k", 64)):
        pixels = numpy.random.randint(0, 255, (count, 28, 28), dtype="uint8")
        (raw / f"{part}-images-idx3-ubyte").write_bytes(struct.pack(">4i", 2051, count, 28, 28) + pixels.tobytes())
        labels = numpy.random.randint(0, 10, count, dtype="uint8")
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">2i", 2049, count) + labels.tobytes())


def said(name: str, number: Any) -> None:
    """A number to its last digit."""
    print(name, repr(float(number)), flush=True)


def weights(*modules: torch.nn.Module | dict[str, Any]) -> None:
    """The sum over the bytes of all parameters and buffers, of modules or what their state_dict() gave."""
    digest = hashlib.sha256()
    for module in modules:
        state = module if isinstance(module, dict) else module.state_dict()
        for name, tensor in sorted(state.items()):
            digest.update(name.encode())
            if isinstance(tensor, torch.Tensor):
                digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    print("weights", digest.hexdigest(), flush=True)
