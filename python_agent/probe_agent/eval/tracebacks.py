"""Writes the traceback of a snippet, in a length that can be sent, whatever was raised.

Python's own module writes it, but from stand-ins: exceptions of classes of ours, with the names of the snippet's classes and
the texts of its exceptions. The texts are asked for once, here, where their length is limited and errors are caught.
"""

from __future__ import annotations

import builtins
import os
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from probe_agent.eval import safe_text, suggestions, values

# Characters at which a whole traceback is cut, in the middle: the raised exception is at its end.
LONGEST = 100_000
# Characters at which a line of source code, a file's name and a function's name are cut.
MAX_LINE_LENGTH = 1000
# Frames, notes, exceptions in a group, in a chain, and in all.
MAX_FRAMES = 200
MAX_NOTES = 20
MAX_IN_GROUP = 15
MAX_CHAINED = 20
MAX_EXCEPTIONS = 100

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_GROUP: Any = getattr(builtins, "BaseExceptionGroup", None)
# The attributes of a SyntaxError that Python's module reads. For three other classes (NameError, AttributeError, ImportError) it asks
# the program's objects and modules for similar names, so the stand-ins of these are of no such class.
_OF_SYNTAX = ("lineno", "end_lineno", "offset", "end_offset")

Raised = Callable[[BaseException], object]


def of(error: BaseException, raised: Raised) -> str:
    """The traceback of `error` without our own frames. `raised` gets what its methods raise."""
    copy = _Copies(raised).of(error)
    # Source lines are looked up later: those that are too long are not kept.
    written = traceback.TracebackException(type(copy), copy, copy.__traceback__, lookup_lines=False)
    for one in _all(written):
        one.stack = _Stack(map(_short, (frame for frame in one.stack if not frame.filename.startswith(_OURS))))
    text = "".join(written.format()).rstrip("\n")
    text = text if written.stack else text.removeprefix("Traceback (most recent call last):\n")
    return safe_text.encodable(_without_middle(text))


class _Stack(traceback.StackSummary):
    """A stack that shows only the outer and the inner frames if it is deep."""

    def format(self, **how: Any) -> list[str]:
        lines = super().format(**how)
        more, half = len(lines) - MAX_FRAMES, MAX_FRAMES // 2
        return [*lines[:half], f"  [{more} more frames]\n", *lines[-half:]] if more > 0 else lines


def _short(frame: traceback.FrameSummary) -> traceback.FrameSummary:
    texts = (frame.filename, frame.name, frame.line or "")
    if max(map(len, texts)) <= MAX_LINE_LENGTH:
        return frame
    filename, name, line = (safe_text.cut(text, MAX_LINE_LENGTH) for text in texts)
    return traceback.FrameSummary(filename, frame.lineno or 0, name, lookup_line=False, line=line)


def _all(written: Any) -> Iterator[Any]:
    """All exceptions of a traceback."""
    seen, pending = set(), [written]
    while pending:
        one = pending.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        pending += [one.__cause__, one.__context__, *(getattr(one, "exceptions", None) or ())]


def _without_middle(text: str) -> str:
    more = len(text) - LONGEST
    if more <= 0:
        return text
    start = LONGEST // 4
    return f"{text[:start]}\n... ({more} characters are left out here) ...\n{text[start - LONGEST :]}"


class _Copies:
    """Makes stand-ins of exceptions."""

    def __init__(self, raised: Raised) -> None:
        self.raised = raised
        self.remaining = MAX_EXCEPTIONS

    def of(self, error: BaseException) -> BaseException:
        """The stand-in of `error`, with those of the exceptions before it and in its group."""
        chain, how = [error], []
        seen = {id(error)}
        while True:
            before, attribute = _before(chain[-1])
            if before is None or id(before) in seen:
                break
            seen.add(id(before))
            chain.append(before)
            how.append(attribute)
        copies = [self._alone(one) for one in chain[:MAX_CHAINED]]
        if len(chain) > MAX_CHAINED:
            copies.append(_in_words(f"({len(chain) - MAX_CHAINED} earlier exceptions)"))
        for copy, attribute, before in zip(copies, how, copies[1:]):
            setattr(copy, attribute, before)
        return copies[0]

    def _alone(self, error: BaseException) -> BaseException:
        if self.remaining <= 0:
            return _in_words("(an exception more than are shown)")
        self.remaining -= 1
        kind = type(error)
        if issubclass(kind, SyntaxError):
            copy = _made(kind, SyntaxError, self._own(SyntaxError, "msg", error))
            self._copy_location(error, copy)
        elif _GROUP is not None and issubclass(kind, _GROUP):
            copy = _made(kind, _GROUP, self._text(error), self._parts(_GROUP.exceptions.__get__(error)))
        else:
            copy = _made(kind, BaseException, self._text(error) + _suggestion(error))
        notes = list(self._notes(error))
        if notes:
            copy.__notes__ = notes  # type: ignore[attr-defined]
        return copy.with_traceback(_member(BaseException, "__traceback__", error))

    def _text(self, value: object) -> str:
        return safe_text.shown(value, str, self.raised)

    def _own(self, base: type, name: str, error: BaseException) -> str:
        value = _member(base, name, error)
        return "" if value is None else self._text(value)

    def _copy_location(self, error: BaseException, copy: Any) -> None:
        """Copies the file and line of a SyntaxError; of a long line only the text around the error."""
        for name in _OF_SYNTAX:
            number = _member(SyntaxError, name, error)
            if type(number) is int:
                setattr(copy, name, number)
        copy.filename = safe_text.cut(self._own(SyntaxError, "filename", error), MAX_LINE_LENGTH) or None
        line = _member(SyntaxError, "text", error)
        if type(line) is str and len(line) <= MAX_LINE_LENGTH:
            copy.text = line
        elif type(line) is str:
            offset = min(copy.offset or 0, len(line))
            start = max(0, offset - MAX_LINE_LENGTH // 2)
            dots = "... " if start else ""
            copy.text = f"{dots}{line[start : start + MAX_LINE_LENGTH]} ..."
            copy.offset, copy.end_offset = offset - start + len(dots), None

    def _parts(self, errors: tuple[BaseException, ...]) -> list[BaseException]:
        most = min(MAX_IN_GROUP, self.remaining)
        # One entry is left for the number of the others.
        shown = errors if len(errors) <= most else errors[: max(0, most - 1)]
        more = len(errors) - len(shown)
        parts = [self.of(error) for error in shown]
        return [*parts, _in_words(f"({more} more exceptions)")] if more else parts

    def _notes(self, error: BaseException) -> Iterator[str]:
        notes = values.instance_dictionary(error).get("__notes__", ())
        if type(notes) not in (list, tuple):
            yield safe_text.shown(notes, repr, self.raised)
            return
        yield from map(self._text, notes[:MAX_NOTES])
        if len(notes) > MAX_NOTES:
            yield f"({len(notes) - MAX_NOTES} more notes)"


def _member(base: type, name: str, error: BaseException) -> Any:
    """An attribute that the builtin class `base` keeps of an exception, past the exception's own class; None if there is none."""
    try:
        return base.__dict__[name].__get__(error)
    except (KeyError, AttributeError):  # The attribute is of a later Python, or is not set.
        return None


def _suggestion(error: BaseException) -> str:
    if issubclass(type(error), NameError):
        return suggestions.for_name(_member(NameError, "name", error), _member(BaseException, "__traceback__", error))
    if issubclass(type(error), AttributeError):
        return suggestions.for_attribute(_member(AttributeError, "name", error), _member(AttributeError, "obj", error))
    return ""


def _before(error: BaseException) -> tuple[Any, str]:
    """The exception that was raised before `error`, and the attribute of `error` that has it."""
    cause = _member(BaseException, "__cause__", error)
    if cause is not None:
        return cause, "__cause__"
    suppressed = _member(BaseException, "__suppress_context__", error)
    return None if suppressed else _member(BaseException, "__context__", error), "__context__"


def _made(kind: type, base: Any, text: str, *more: Any) -> BaseException:
    """An exception with the message `text` that looks like one of class `kind`."""
    names = {
        name: safe_text.cut(value, safe_text.MAX_NAME_LENGTH) if issubclass(type(value), str) else "<unknown>"
        for name in ("__module__", "__qualname__")
        for value in [type.__dict__[name].__get__(kind)]
    }
    made: BaseException = type("StandIn", (base,), {**names, "__str__": lambda self: text})(text, *more)
    return made


def _in_words(text: str) -> BaseException:
    """A stand-in whose class name is `text`: a note in the position of an exception."""
    made: BaseException = type("StandIn", (BaseException,), {"__module__": "builtins", "__qualname__": text})()
    return made
