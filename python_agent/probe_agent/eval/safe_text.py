"""Text of objects of foreign classes. Their `__str__` and `__repr__` may raise, print, loop or give any length, and even a
string may be of a class with false methods. So only `str`'s own methods are called on the results.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from probe_agent.eval.ended import SnippetEnded

# Characters at which a message is cut, and a name.
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
    """The result of `show(value)`, where `show` is `str` or `repr`. An exception goes to `raised`, and its class is in the
    result instead; only SnippetEnded is raised again."""
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
