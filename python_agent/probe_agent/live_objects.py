"""The objects of the process, also those that the garbage collector does not list."""

from __future__ import annotations

import gc
import itertools
import sys
from typing import Any

from probe_agent import _native


def live_objects() -> list[Any]:
    """All objects that may refer to others, as `gc.get_objects` has them. That leaves out what the program has taken from the
    collector (``gc.freeze``), as programs do that fork or whose collections take long: this is found by following references
    from modules, from variables of functions that run on any thread, and from all other objects. It takes a quarter of a second
    and runs no code of the program."""
    objects = gc.get_objects()
    if not gc.get_freeze_count():
        return objects
    frames = itertools.chain.from_iterable(_native.stacks().values())
    variables = itertools.chain.from_iterable(_native.frame_locals(frame).values() for frame in frames)
    known = set(map(id, objects))
    waiting = [*objects, *sys.modules.values(), *variables]
    while waiting:
        # The list itself too, for what only it refers to: modules and variables.
        new = {id(each): each for each in gc.get_referents(*waiting, waiting) if gc.is_tracked(each)}
        waiting = [each for address, each in new.items() if address not in known]
        known.update(new)
        objects += waiting
    return objects
