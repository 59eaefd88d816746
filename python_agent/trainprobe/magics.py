"""IPython's magics: `%probe` chooses a run, `%%probe` asks it in SQL, `%%probe_eval` runs Python in the training process."""

from __future__ import annotations

import argparse
import re
import shlex
from typing import Any

from IPython.core.error import UsageError as ShellUsageError
from IPython.core.magic import Magics, cell_magic, line_magic, magics_class
from IPython.display import clear_output, display

from trainprobe import completion, connecting, frames, listing, parameters
from trainprobe.errors import Unreachable
from trainprobe.progress import Progress
from trainprobe.run import Run

#: Rows that a cell fetches by default.
ROWS = 10_000

#: Text, quoted names, comments, casts, and `:name` for a variable of the notebook.
_PARTS = re.compile(
    r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|--[^\n]*|/\*.*?\*/|::|:(?P<name>[A-Za-z_][A-Za-z0-9_]*)""", re.DOTALL
)


class _Parser(argparse.ArgumentParser):
    """A parser that reports errors as IPython does, instead of ending the process."""

    def error(self, message: str) -> Any:
        raise ShellUsageError(f"{message}\n{self.format_usage().strip()}")

    def exit(self, status: int = 0, message: str | None = None) -> Any:
        raise ShellUsageError(message or "")


def _of_line(parser: argparse.ArgumentParser, line: str) -> argparse.Namespace:
    try:
        return parser.parse_args(shlex.split(line))
    except ValueError as error:
        raise ShellUsageError(str(error)) from None


@magics_class
class ProbeMagics(Magics):
    """The magics of one shell, which remember the run that was chosen."""

    def __init__(self, shell: Any) -> None:
        super().__init__(shell)
        self.run: Run | None = None

    def chosen(self, endpoint: str | None = None) -> Run:
        """The run to ask: the one that is named, else the one that was chosen, else the only live one."""
        if endpoint:
            return connecting.connect(endpoint)
        if self.run is None:
            self.run = connecting.connect()
        return self.run

    def _progress(self, what: str) -> Progress:
        # A page keeps a line of an error's colour for blanks. Nothing else stands below the cell yet.
        return Progress(what, clear=clear_output if hasattr(self.shell, "kernel") else None)

    @line_magic
    def probe(self, line: str) -> Any:
        """`%probe gpt` chooses the run for the cells below; `%probe` says which it is, or lists runs."""
        words = shlex.split(line)
        if len(words) > 1:
            raise ShellUsageError("%probe takes one run: %probe gpt")
        if words:
            self.run = connecting.connect(words[0])
            return self.run
        try:
            return self.chosen()
        except Unreachable:
            return listing.runs()

    @cell_magic("probe")
    def probe_cell(self, line: str, cell: str) -> Any:
        """`%%probe [ENDPOINT] [-o NAME] [-n ROWS] [--plot [line|bar]]`: the cell is SQL.

        `:name` in it is a variable of the notebook, bound as a parameter. The answer becomes a DataFrame of pandas, else of
        Polars, else a list of dictionaries; `-o NAME` assigns it to a variable and shows it only with --plot. At most 10000
        rows are fetched, which is said where there are more; -n 0 fetches all. The interrupt button cancels the query.
        """
        parser = _Parser(prog="%%probe", add_help=False)
        parser.add_argument("endpoint", nargs="?")
        parser.add_argument("-o", "--out", metavar="NAME")
        parser.add_argument("-n", "--limit-rows", metavar="ROWS", type=int, default=ROWS)
        parser.add_argument("--plot", nargs="?", const="", choices=["", "line", "bar"])
        options = _of_line(parser, line)
        if options.out and not options.out.isidentifier():
            raise ShellUsageError(f"-o {options.out}: that is no name of a variable")
        sql, names = named(cell)
        missing = [name for name in names if name not in self.shell.user_ns]
        if missing:
            raise ShellUsageError(f":{missing[0]} is not a variable of this notebook")
        # $name is bound too where the notebook has such a variable.
        names += [name for name in parameters.used(sql, self.shell.user_ns) if name not in names]
        run = self.chosen(options.endpoint)
        result = run.sql(sql, {name: self.shell.user_ns[name] for name in names})
        with self._progress(f"asking {run.name}"):
            fetched = frames.fetch(result, options.limit_rows or None)
        if fetched.more:
            print(f"These are the first {fetched.rows} rows; there are more. %%probe -n 0 fetches all.")
        if options.plot is not None:
            display(fetched.plot(options.plot or None))
        if options.out:
            self.shell.user_ns[options.out] = fetched.frame
            return None
        return fetched.frame

    @cell_magic
    def probe_eval(self, line: str, cell: str) -> Any:
        """`%%probe_eval [ENDPOINT] [--rank N|all] [--at auto|now|step] [--session NAME] [--timeout SECONDS]`: the cell is
        Python, run in the training process. The interrupt button cancels it and never the run.
        """
        parser = _Parser(prog="%%probe_eval", add_help=False)
        parser.add_argument("endpoint", nargs="?")
        parser.add_argument("--rank")
        parser.add_argument("--at", default="auto", choices=["auto", "now", "step"])
        parser.add_argument("--session")
        parser.add_argument("--timeout", type=float, default=30.0)
        options = _of_line(parser, line)
        run = self.chosen(options.endpoint)
        evaluator = run.session(options.session) if options.session else run
        with self._progress(f"running in {run.name}"):
            return evaluator.eval(cell, rank=options.rank, at=options.at, timeout=options.timeout)


def named(sql: str) -> tuple[str, list[str]]:
    """The query with `$name` for `:name`, and those names. Text, comments and `::` casts stay as they are."""
    names: list[str] = []

    def replaced(part: re.Match[str]) -> str:
        name = part["name"]
        if name is None:
            return part[0]
        if name not in names:
            names.append(name)
        return f"${name}"

    return _PARTS.sub(replaced, sql), names


def load(shell: Any) -> None:
    """Registers the magics and their completion."""
    made = ProbeMagics(shell)
    shell.register_magics(made)
    completion.register(shell, made)
