"""Text of objects that somebody else wrote. Their `__str__` and `__repr__` may raise, print, loop or give any length, and
even a string may be of a class whose methods lie: so only `str`'s own methods are called on what they give.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from probe_agent.eval.ended import SnippetEnded

# A message is cut here, and a name (characters).
LONGEST = 10_000
MAX_NAME_LENGTH = 500


def cut(text: str, longest: int = LONGEST, hint: str = "") -> str:
    """An exact string of the start of `text`, which says how much of it is missing."""
    more = str.__len__(text) - longest
    start = str.__getitem__(text, slice(0, longest))
    return f"{start}... ({more} more characters{hint})" if more > 0 else start


def encodable(text: str) -> str:
    """`text` with escapes for halves of surrogate pairs, as Python's standard error has them: UTF-8 has no such thing."""
    return text.encode("utf-8", "backslashreplace").decode()


def shown(value: object, show: Callable[[Any], str], raised: Callable[[BaseException], object]) -> str:
    """What `show`, which is `str` or `repr`, says of `value`. What that raises is given to `raised`, and said instead; only
    the end of the snippet goes on."""
    try:
        return encodable(cut(show(value)))
    except SnippetEnded:
        raise
    except BaseException as error:
        raised(error)
        return f"<{class_name(value)} whose {show.__name__}() raised {class_name(error)}>"


def described(error: BaseException, raised: Callable[[BaseException], object] = lambda error: None) -> str:
    """An exception in one line: its class and what it says."""
    return f"{class_name(error)}: {shown(error, str, raised)}"


def class_name(value: object) -> str:
    """The name of an object's class, whatever its metaclass says."""
    name: str = type.__dict__["__name__"].__get__(type(value))
    return cut(name, MAX_NAME_LENGTH)
