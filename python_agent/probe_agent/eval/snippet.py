"""One snippet: from its text to an outcome.

A snippet can be ended at any moment, by an exception that Python raises in its thread. An exception that comes too late
must not escape into training, so all of them are caught here, and none is sent once the snippet is over.
"""

from __future__ import annotations

import ast
import linecache
import sys
import threading
import time
from types import CodeType
from typing import Any, NamedTuple

from probe_agent import signals
from probe_agent._native import Outcome
from probe_agent.eval import display, guard, own_variables, safe_text, tracebacks
from probe_agent.eval.ended import SnippetEnded, interrupt, is_importing


class SnippetResult(NamedTuple):
    """How a snippet ended, and the error message."""

    outcome: Outcome
    error: str = ""


class ParsedSnippet(NamedTuple):
    """A snippet that compiles."""

    tree: ast.Module
    body: CodeType
    last: CodeType | None
    #: Names that it assigns, as :func:`own_variables.assignments` has them.
    assigned: dict[str, bool]


def parse(code: str, filename: str) -> ParsedSnippet:
    """Compiles a snippet; raises SyntaxError or ValueError. `last` is the expression at its end, to be shown."""
    tree = ast.parse(code, filename)
    statements, last = tree.body, None
    if statements and isinstance(statements[-1], ast.Expr):
        last = compile(ast.Expression(statements[-1].value), filename, "eval", dont_inherit=True)
        statements = statements[:-1]
    body = compile(ast.Module(statements, tree.type_ignores), filename, "exec", dont_inherit=True)
    return ParsedSnippet(tree, body, last, own_variables.assignments(tree))


def words_of(error: BaseException, raised: tracebacks.Raised = lambda error: None) -> str:
    """The traceback of a snippet, without our own frames. `raised` is given what the exception's own methods raise."""
    try:
        return tracebacks.of(error, raised)
    except SnippetEnded:
        raise
    except BaseException as another:
        # Lines of code come from loaders, which may be the snippet's too.
        raised(another)
        return safe_text.described(error, raised)


class SnippetExecution:
    """Runs a parsed snippet once, on the thread that calls :meth:`run`, and lets others end it."""

    def __init__(self, code: str, filename: str, parsed: ParsedSnippet) -> None:
        self.code, self.filename, self.parsed = code, filename, parsed
        self._began: float | None = None
        self._seconds: float | None = None
        self._lock = threading.Lock()
        self._thread: int | None = None
        self._over = False
        self._sent = False
        #: The exception that ended the snippet and is meant for the program: raised there after the answer.
        self.of_program: BaseException | None = None

    @property
    def seconds(self) -> float:
        """How long the snippet took, or has been running: one clock and one start, so that the value never decreases."""
        if self._began is None:
            return 0.0
        return time.perf_counter() - self._began if self._seconds is None else self._seconds

    def end(self, within_imports: bool = False) -> bool:
        """Ends the snippet; False if it is not running (yet, or any more), or is importing a module and `within_imports` is
        False."""
        with self._lock:
            if self._thread is None or self._over or (not within_imports and self.is_importing()):
                return False
            self._sent = True
            interrupt(self._thread)
            return True

    def is_importing(self) -> bool:
        """Whether the snippet is importing a module, and must not be ended in the middle of that."""
        return self._thread is not None and is_importing(self._thread, SnippetExecution._run.__code__)

    def run(self, names: dict[str, Any], beside: bool = True) -> SnippetResult | None:
        """Runs the snippet with these names; None if :meth:`end` ended it. Raises nothing.
        `beside`: training goes on meanwhile."""
        self._began = time.perf_counter()
        ending: SnippetResult | None = None
        try:
            try:
                with self._lock:
                    self._thread = threading.get_ident()
                ending = self._run(names, beside)
            finally:
                self._finish()
        except SnippetEnded:
            # The interrupt came after the snippet's own end and before ours.
            self._finish()
        guard.end_of_snippet()
        self._seconds = time.perf_counter() - self._began
        return ending

    def _finish(self) -> None:
        """Makes sure that no interrupt is sent from here on, and that one that was sent has been raised.

        An interrupt is never taken back: CPython 3.11 then keeps its flag for asynchronous exceptions up, and a thread that is
        being profiled or traced spins for ever on that flag at the next call of a Python function.
        """
        while True:
            try:
                with self._lock:
                    self._over = True
                if self._sent:
                    # Whether it was raised is unknown (a snippet may have caught it): this one replaces it.
                    interrupt(threading.get_ident())
                    while True:
                        time.sleep(0)
                return
            except SnippetEnded:
                if self._over:
                    return

    def _note_handlers(self, error: BaseException) -> None:
        """Keeps an exception of one of the program's signal handlers: it ends the snippet, and is meant for the program."""
        on_main_thread = threading.current_thread() is threading.main_thread()
        if on_main_thread and (signals.is_ctrl_c(error) or signals.is_of_a_handler(error)):
            self.of_program = error

    def _run(self, names: dict[str, Any], beside: bool) -> SnippetResult | None:
        lines = self.code.splitlines(keepends=True)
        linecache.cache[self.filename] = (len(self.code), None, lines, self.filename)
        try:
            exec(self.parsed.body, names)
            if self.parsed.last is not None:
                value = eval(self.parsed.last, names)
                if value is not None:
                    print(display.text(value, beside))
            for name in ("stdout", "stderr"):
                stream = getattr(sys, name, None)
                if stream is not None and not getattr(stream, "closed", False):
                    stream.flush()
            return SnippetResult(Outcome.OK)
        except SnippetEnded:
            return None
        except BaseException as error:
            self._note_handlers(error)
            if issubclass(type(error), SystemExit):
                return self._exit(error)
            return SnippetResult(Outcome.ERROR, words_of(error, self._note_handlers))
        finally:
            linecache.cache.pop(self.filename, None)

    def _exit(self, error: BaseException) -> SnippetResult:
        code = SystemExit.__dict__["code"].__get__(error)
        if code is None or (type(code) in (int, bool) and not code):
            return SnippetResult(Outcome.OK)
        return SnippetResult(Outcome.ERROR, f"SystemExit: {safe_text.shown(code, str, self._note_handlers)}")
