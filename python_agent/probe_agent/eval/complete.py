"""Completes a name that is being typed. This runs no training code: attributes are looked up as they are stored in objects,
so the results of properties and `__getattr__` are not known.
"""

from __future__ import annotations

import builtins
import re
from typing import Any

from probe_agent.eval import values

# The most names that are shown, and the characters of the longest.
MAX_NAMES = 500
MAX_NAME_LENGTH = 250

_PART = re.compile(r"(\w*)((?:\[\d+\])*)\Z")


def names(chain: str, known: dict[str, Any]) -> list[str]:
    """The completions of the last name of `chain` (`model.layers[0].at`). `known`: the names that the snippet sees."""
    *before, stem = chain.split(".")
    if before:
        thing = _resolve(before, known)
        found = set() if thing is values.UNKNOWN else attributes(thing)
    else:
        found = {name for name in {*known, *vars(builtins)} if _is_name(name)}
    hidden = not stem
    fitting = (name for name in found if name.startswith(stem) and not (hidden and name.startswith("_")))
    return sorted(fitting)[:MAX_NAMES]


def _resolve(parts: list[str], known: dict[str, Any]) -> Any:
    thing: Any = values.UNKNOWN
    for position, part in enumerate(parts):
        match = _PART.match(part)
        if match is None:
            return values.UNKNOWN
        name = match[1]
        if position == 0:
            thing = known.get(name, vars(builtins).get(name, values.UNKNOWN))
        else:
            thing = values.static(thing, name)
        for index in re.findall(r"\d+", match[2]):
            thing = _item(thing, int(index))
        if thing is values.UNKNOWN:
            return thing
    return thing


def _item(thing: Any, index: int) -> Any:
    if type(thing) in (list, tuple):
        return thing[index] if index < len(thing) else values.UNKNOWN
    if type(thing) is dict:
        return thing.get(index, values.UNKNOWN)
    # A ModuleList or Sequential, which keeps its parts by number.
    return values.static(thing, str(index))


def attributes(thing: Any) -> set[str]:
    """The names of the attributes that are stored in an object, its class and the classes above."""
    found: set[Any] = set()
    for part in ("__dict__", "_modules", "_parameters", "_buffers"):
        inside = values.static(thing, part) if part != "__dict__" else values.instance_dictionary(thing)
        if type(inside) is dict:
            found.update(inside)
    for owner in (type(thing), *((thing,) if issubclass(type(thing), type) else ())):
        for base in type.__getattribute__(owner, "__mro__"):
            found.update(type.__getattribute__(base, "__dict__"))
    return {name for name in found if _is_name(name)}


def _is_name(name: Any) -> bool:
    """Whether a dictionary's key, which may be of any type, is a name that can be typed."""
    return type(name) is str and len(name) <= MAX_NAME_LENGTH and name.isidentifier()
