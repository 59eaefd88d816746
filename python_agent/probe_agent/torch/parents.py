"""Notes the parent of each module by torch's registration hook, so that a module that is called without its parent
(``policy.actor(x)``, where ``policy`` has no ``forward``) has its qualified name all the same.

A parent that can be called itself gives no name: a module around a finished model (an average of its weights) is no part of
the model. Parents of modules that were made before recording began, or are copies, are not known.
"""

from __future__ import annotations

import dis
import weakref
from collections.abc import Iterator
from typing import Any

#: Links at which all are checked, and those that no longer hold are forgotten.
_MIN_LIMIT = 4096
#: Deeper than any model, so that a circular chain ends.
_MAX_DEPTH = 64

#: Modules whose ``forward`` and ``__call__`` are not a class's own.
_INHERITED = ("torch.nn.modules.module", "lightning.pytorch.core.module", "pytorch_lightning.core.module")

#: Parent and name by the child's address. An address may have been used again, so `_holds` checks an entry.
_links: dict[int, tuple[weakref.ref[Any], str]] = {}
_limit = _MIN_LIMIT


def note(parent: Any, name: str, child: Any) -> None:
    """Note that ``child`` is about to become ``parent``'s ``name``. A module with two parents keeps the first."""
    global _limit
    address = id(child)
    link = _links.get(address)
    if link is not None and _holds(link, address):
        return
    try:
        link = (weakref.ref(parent), name)
    except TypeError:  # A class without weak references.
        return
    if len(_links) >= _limit:
        for other, known in list(_links.items()):
            if not _holds(known, other):
                _links.pop(other, None)
        _limit = max(_MIN_LIMIT, 2 * len(_links))
    _links[address] = link


def above(module: Any) -> Iterator[tuple[Any, str]]:
    """The parent of ``module``, with the module's name there; then the parent's parent; and so on, up to one that can be called
    itself."""
    for _ in range(_MAX_DEPTH):
        link = _links.get(id(module))
        if link is None or not _holds(link, id(module)):
            return
        reference, name = link
        module = reference()
        if module is None or _is_called(module):
            return
        yield module, name


def forget() -> None:
    """Forget everything."""
    global _limit
    _links.clear()
    _limit = _MIN_LIMIT


def _is_called(parent: Any) -> bool:
    """Whether ``parent`` has a ``forward`` or a ``__call__`` of its own that can return."""
    functions = (getattr(type(parent), name, None) for name in ("forward", "__call__"))
    own = [function for function in functions if getattr(function, "__module__", "") not in _INHERITED]
    return any(not _only_raises(function) for function in own)


def _only_raises(function: Any) -> bool:
    """Whether a function always ends by an exception, as a ``forward`` does that says which method to call in its place. Before
    Python 3.10 that is not seen."""
    code = getattr(function, "__code__", None)
    ends = ("RETURN", "YIELD")
    return code is not None and not any(of.opname.startswith(ends) for of in dis.get_instructions(code))


def _holds(link: tuple[weakref.ref[Any], str], address: int) -> bool:
    """Whether a link still holds: addresses are used again, and modules are replaced. Runs no code of the program's."""
    parent = link[0]()
    children = None if parent is None else parent.__dict__.get("_modules")
    # A TorchScript module's children are no dictionary.
    return isinstance(children, dict) and id(children.get(link[1])) == address
