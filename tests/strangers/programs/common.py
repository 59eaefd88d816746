"""Shared parts of the drivers: seeds, and every weight to the last bit on stdout."""

from __future__ import annotations

import hashlib
import random
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


def said(name: str, number: Any) -> None:
    """A number to its last digit."""
    print(name, repr(float(number)), flush=True)


def weights(*modules: torch.nn.Module) -> None:
    """The sum over the bytes of all parameters and buffers."""
    digest = hashlib.sha256()
    for module in modules:
        for name, tensor in sorted(module.state_dict().items()):
            digest.update(name.encode())
            if isinstance(tensor, torch.Tensor):
                digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    print("weights", digest.hexdigest(), flush=True)
