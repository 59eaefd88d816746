"""Frames of the training thread by number, to choose the one whose names a snippet sees.

They are counted from the outermost: the inner ones come and go while training runs, and a number means the same
function from one command to the next only this way.
"""

from __future__ import annotations

import os
from types import FrameType
from typing import Any

from probe_agent import user_code
from probe_agent.eval import namespace

# Lines of a listing; of a deeper stack the outer and the inner frames are shown.
MAX_LINES = 60


class NoFrameError(LookupError):
    """There is no frame of this number; `hint` says which there are."""

    def __init__(self, text: str, hint: str) -> None:
        super().__init__(text)
        self.hint = hint


def of(thread: int) -> list[FrameType]:
    """Python frames of `thread`, outermost first, without those of the agent and of a snippet that runs there."""
    found = []
    for frame in reversed(namespace.stack(thread)):
        file = frame.f_code.co_filename
        if file.startswith(_EVAL):
            break
        if not user_code.is_ours(file):
            found.append(frame)
    return found


def names(thread: int, number: int | None) -> dict[str, Any]:
    """A new dictionary of the names that frame `number` of `thread` sees; None: those of all of the user's frames."""
    if number is None:
        return namespace.snapshot(thread)
    found = of(thread)
    if number < len(found):
        return namespace.of_frame(found[number])
    if not found:
        raise NoFrameError("error: the training thread runs no Python code now", "--frames lists its frames")
    last = len(found) - 1
    text = f"error: the training thread has no frame {number}, only 0{f' to {last}' if last else ''}"
    raise NoFrameError(text, "its frames are\n" + listing(found))


def listing(frames: list[FrameType]) -> str:
    """A line a frame: number, function, file and line, how many names it sees (locals, also not yet assigned, and globals)."""
    rows = []
    for number, frame in enumerate(frames):
        code = frame.f_code
        function = getattr(code, "co_qualname", code.co_name)
        # Not by f_locals: up to Python 3.12 the frame would keep what its locals are now until it ends.
        known = {*code.co_varnames, *code.co_cellvars, *code.co_freevars, *frame.f_globals}
        seen = [name for name in known if name.isidentifier() and not name.startswith("__")]
        location = f"{_short(code.co_filename)}:{frame.f_lineno}"
        rows.append(
            (str(number), function, location, str(len(seen)), "" if user_code.is_user_frame(frame) else "library")
        )
    cut = len(rows) - MAX_LINES
    if cut > 0:
        half = MAX_LINES // 2
        rows[half : half + cut] = [("...", f"({cut} more)", "", "", "")]
    rows.insert(0, ("frame", "function", "at", "names", ""))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = (
        f"{number:>{widths[0]}}  {function:<{widths[1]}}  {location:<{widths[2]}}  {seen:>{widths[3]}}  {whose}".rstrip()
        for number, function, location, seen, whose in rows
    )
    return "\n".join(lines)


def show() -> None:
    """Prints the frames of the training thread. The snippet of `--frames` calls this."""
    found = of(namespace.training_thread())
    print(listing(found) if found else "the training thread runs no Python code now")


def _short(file: str) -> str:
    """`file` relative to the working directory or to the directory of packages."""
    for directory in ("/site-packages/", "/dist-packages/"):
        if directory in file:
            return file.rpartition(directory)[2]
    try:
        return file.removeprefix(os.getcwd() + os.sep)
    except OSError:  # The working directory was deleted.
        return file


_EVAL = os.path.dirname(os.path.abspath(__file__)) + os.sep
