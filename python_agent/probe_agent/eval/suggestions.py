"""What a misspelt name may have meant.

Python's own suggestions ask the objects of the program (`hasattr(self, name)`, `dir`), which runs properties of training's code
beside training. These only look at what is stored.
"""

from __future__ import annotations

import difflib
from types import TracebackType
from typing import Any

from probe_agent import _native
from probe_agent.eval import complete

# Longer names are not compared, and where there are more names nothing is suggested.
_MAX_NAME_LENGTH = 40
_MAX_NAMES = 750
# How similar a suggestion is at least, as `difflib` counts it.
_ALIKE = 0.7


def for_name(name: object, traceback: TracebackType | None) -> str:
    """The words for a name that the innermost frame of `traceback` does not know; empty where nothing is similar."""
    if traceback is None:
        return ""
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    frame = traceback.tb_frame
    return _words(name, {*_native.frame_locals(frame), *frame.f_globals, *frame.f_builtins})


def for_attribute(name: object, thing: object) -> str:
    """The words for an attribute that `thing` does not have; empty where nothing is similar."""
    return _words(name, complete.attributes(thing))


def _words(name: object, known: set[Any]) -> str:
    if type(name) is not str or len(name) > _MAX_NAME_LENGTH:
        return ""
    known = {each for each in known if type(each) is str and each != name and len(each) <= _MAX_NAME_LENGTH}
    if len(known) > _MAX_NAMES:
        return ""
    best = difflib.get_close_matches(name, sorted(known), 1, _ALIKE)
    return f". Did you mean: {best[0]!r}?" if best else ""
