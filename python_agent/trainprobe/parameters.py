"""Python values as parameters of a query: `probe query --param NAME:TYPE=VALUE`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime

from trainprobe.errors import UsageError
from trainprobe.timestamps import Timestamp, nanoseconds_of

#: A name that is a number is the position of a `?`.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9]+")


def options(parameters: Mapping[str, object]) -> list[str]:
    """The options that give these values to the names in a query.

    Raises UsageError for a name or a value that cannot be one.
    """
    return [word for name, value in parameters.items() for word in ("--param", option(name, value))]


def option(name: str, value: object) -> str:
    """`NAME:TYPE=VALUE`. Values are None, bool, int (64 bits), float, str or a datetime with a time zone; what behaves
    like one of them, such as a number of numpy, is taken for it."""
    if not _NAME.fullmatch(name):
        raise UsageError(f"'{name}' is not a name of a parameter", "use letters, digits and _, and no digit first")
    if hasattr(value, "item") and not isinstance(value, (str, bytes)):
        value = value.item()
    if value is None:
        return f"{name}=NULL"
    if isinstance(value, bool):
        return f"{name}:bool={'true' if value else 'false'}"
    if isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            raise UsageError(f"{name} = {value} has more than 64 bits", "give it as a float or as text")
        return f"{name}:int={int(value)}"
    if isinstance(value, float):
        return f"{name}:float={float(value)!r}"
    if isinstance(value, str):
        if "\0" in value:
            raise UsageError(f"{name} has a zero byte in its text")
        return f"{name}:text={value}"
    if isinstance(value, datetime):
        if value.utcoffset() is None:
            raise UsageError(f"{name} = {value} has no time zone", "times are UTC: value.replace(tzinfo=timezone.utc)")
        return f"{name}:timestamp={Timestamp.of(nanoseconds_of(value)).isoformat()}"
    raise UsageError(
        f"{name} is a {type(value).__name__}, which is no parameter",
        "give None, a bool, an int, a float, text or a datetime",
    )


def used(sql: str, known: Iterable[str]) -> list[str]:
    """Those of the names `known` that stand as `$name` in a query."""
    there = set(re.findall(r"\$([A-Za-z_][A-Za-z0-9_]*)", sql))
    return [name for name in known if name in there]
