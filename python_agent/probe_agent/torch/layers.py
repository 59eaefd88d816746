"""Parses ``PROBE_LAYERS``: which layers record, and by which mechanism."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., Any])

OFF = "off"


class Unavailable(Exception):
    """A mechanism does not work here; the message says why. An empty message: nothing is missed by that, or not yet."""


def skipped_by_dynamo(function: _Function) -> _Function:
    """Have Dynamo compile what ``function`` calls as if ``function`` was not there. Imports nothing of torch.compile."""
    try:
        from torch._C._dynamo import eval_frame

        found: Any = eval_frame  # torch's stubs lack some of it
        if hasattr(found, "skip_code"):  # Earlier releases of torch.
            found.skip_code(function.__code__)
        else:
            skip = found._FrameExecStrategy(found._FrameAction.SKIP, found._FrameAction.DEFAULT)
            found.set_code_exec_strategy(function.__code__, skip)
    except (ImportError, AttributeError):  # A torch without these functions: this one is traced like any other.
        pass
    return function


@dataclass
class WantedMechanisms:
    """What to try for each layer, best first; nothing to try means off."""

    mechanisms: dict[str, list[str]]
    chosen: set[str] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)

    def is_explicit(self, layer: str) -> bool:
        """Whether ``PROBE_LAYERS`` names the layer's mechanism. Such a choice is used also on a torch that was not verified."""
        return layer in self.chosen


def _same(a: str, b: str) -> bool:
    return a.replace("_", "-") == b.replace("_", "-")


def parse(text: str | None, layers: dict[str, list[str]]) -> WantedMechanisms:
    """Read ``PROBE_LAYERS``.

    Comma-separated: ``NAME`` (only the layers named so), ``-NAME`` (not this one), ``NAME=MECHANISM`` (this mechanism, else
    those after it; ``off`` is one too), ``all``. Items that make no sense are left out, with a message in ``problems``.
    """
    wanted = WantedMechanisms({layer: list(mechanisms) for layer, mechanisms in layers.items()})
    only: set[str] = set()
    everything = False
    for item in filter(None, (part.strip() for part in (text or "").split(","))):
        name, _, mechanism = item.lstrip("-").partition("=")
        name = name.strip()
        if item == "all":
            everything = True
        elif name not in layers:
            wanted.problems.append(f"PROBE_LAYERS: there is no layer '{name}'; available: {', '.join(layers)}")
        elif item.startswith("-") or mechanism.strip() == OFF:
            wanted.mechanisms[name] = []
        elif mechanism:
            matching = [index for index, known in enumerate(layers[name]) if _same(known, mechanism.strip())]
            if matching:
                wanted.mechanisms[name] = layers[name][matching[0] :]
                wanted.chosen.add(name)
            else:
                known = ", ".join([*layers[name], OFF])
                wanted.problems.append(f"PROBE_LAYERS: {name} can't be '{mechanism.strip()}'; it can be {known}")
        else:
            only.add(name)
    if only and not everything:
        for layer in layers:
            if layer not in only | wanted.chosen:
                wanted.mechanisms[layer] = []
    return wanted
