"""Which module another one was put into, as torch's registration hook says: a module that is called outside of it
(``policy.actor(x)``, where ``policy`` has no ``forward``) has its qualified name all the same.

What can be called itself gives no name: something around a finished model (an average of its weights) is no part of it.
Nothing is known of modules that were made before recording began, or are copies.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

#: When there are so many links, they are looked through, and those that no longer hold are forgotten.
_MIN_LIMIT = 4096
#: Deeper than any model; a chain that goes in a circle ends.
_MAX_DEPTH = 64

#: Where the ``forward`` is that only says that there is none.
_WITHOUT_FORWARD = ("torch.nn.modules.module", "lightning.pytorch.core.module", "pytorch_lightning.core.module")

#: By the child's address, which says nothing alone: see `_holds`.
_links: dict[int, tuple[weakref.ref[Any], str]] = {}
_limit = _MIN_LIMIT


def note(parent: Any, name: str, child: Any) -> None:
    """``child`` is about to become ``parent``'s ``name``. One that is in two places is where it was put first."""
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
    """The module that ``module`` is in, and its name there; then the one that is in; and so on, up to one that is called
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
    """Whether ``parent`` has a ``forward`` or a ``__call__`` of its own."""
    functions = (getattr(type(parent), name, None) for name in ("forward", "__call__"))
    return any(getattr(function, "__module__", "") not in _WITHOUT_FORWARD for function in functions)


def _holds(link: tuple[weakref.ref[Any], str], address: int) -> bool:
    """Whether it is still true: addresses are used again, and modules are replaced. Runs no code of the program's."""
    parent = link[0]()
    children = None if parent is None else parent.__dict__.get("_modules")
    # TorchScript's are no dictionary.
    return isinstance(children, dict) and id(children.get(link[1])) == address
