"""Python in the training process: `probe eval`."""

from __future__ import annotations

import html
import json
import secrets
from dataclasses import dataclass, field
from typing import Any

from trainprobe.command import Command, ended_with_errors
from trainprobe.errors import SnippetError
from trainprobe.target import Target


@dataclass
class Evaluation:
    """The result of a snippet.

    :ivar text: its output; with several ranks each line begins with its rank.
    :ivar ranks: its output by rank; the key is None without a process group.
    :ivar step: steps that were finished when it ran; None where it ran on no rank.
    :ivar between_steps: whether it ran between two steps on the training thread.
    :ivar waited: seconds that training waited for it.
    """

    text: str = ""
    ranks: dict[int | None, str] = field(default_factory=dict)
    step: int | None = None
    between_steps: bool = False
    waited: float = 0.0
    errors: str = ""

    def __str__(self) -> str:
        return self.text.rstrip("\n")

    __repr__ = __str__

    def _repr_html_(self) -> str:
        wait = f" · between steps, training waited {self.waited:.2f} s" if self.between_steps else ""
        step = "" if self.step is None else f"<small>step {self.step}{wait}</small>"
        return f"<pre>{html.escape(self.text)}</pre>{step}"

    def _take(self, event: dict[str, Any]) -> None:
        what = event["event"]
        if what == "placed":
            self.between_steps = event["at"] == "step"
        elif what == "output" and not event["stderr"]:
            self.ranks[event["rank"]] = self.ranks.get(event["rank"], "") + event["text"]
        elif what == "done":
            if event["outcome"] in ("ok", "error", "timeout", "output_limit"):
                self.step = event["step"] if self.step is None else self.step
                self.ranks.setdefault(event["rank"], "")
            self.errors += f"{event['error']}\n" if event["error"] else ""
        elif what == "finished":
            self.waited = event["training_waited"]

    def _finish(self) -> None:
        ranks = sorted(self.ranks.items(), key=lambda item: -1 if item[0] is None else item[0])
        if len(ranks) == 1:
            self.text = ranks[0][1]
        else:
            lines = [f"[rank {rank}] {line}" for rank, text in ranks for line in text.splitlines()]
            self.text = "".join(f"{line}\n" for line in lines)


@ended_with_errors
def evaluate(
    target: Target,
    code: str,
    rank: int | str | None = None,
    at: str = "auto",
    timeout: float = 30.0,
    session: str | None = None,
    end_session: bool = False,
) -> Evaluation:
    """Runs a snippet, as :meth:`trainprobe.Run.eval` describes it."""
    words = ["--format", "ndjson", "--at", at, "--timeout", f"{timeout}s"]
    words += ["--rank", str(rank)] if rank is not None else []
    words += ["--session", session] if session else []
    words += ["--end-session"] if end_session else []
    command = Command(target.words("eval", *words), code, target.environment, SnippetError)
    done = Evaluation()
    try:
        for line in command.stdout:
            if line.endswith(b"\n"):
                done._take(json.loads(line))
        done._finish()
        command.finish()
    except KeyboardInterrupt:
        # Like Ctrl-C: the snippet is cancelled, and training goes on.
        command.interrupt()
        raise
    except SnippetError as error:
        error.evaluation = done
        if done.errors:
            error.message = done.errors.rstrip("\n")
        raise
    finally:
        command.end()
    return done


class Session:
    """Variables that are kept between snippets. As a context manager it deletes them at its end.

    >>> with run.session() as session:
    ...     session.eval("answer = 6 * 7").text
    ...     session.eval("print(answer)").text
    ''
    '42\\n'
    """

    def __init__(self, target: Target, name: str | None = None) -> None:
        self._target = target
        self.name = name or f"trainprobe-{secrets.token_hex(4)}"
        self._rank: int | str | None = None

    def eval(self, code: str, rank: int | str | None = None, at: str = "auto", timeout: float = 30.0) -> Evaluation:
        """Runs a snippet with the session's variables, as :meth:`trainprobe.Run.eval` does."""
        self._rank = rank
        return evaluate(self._target, code, rank, at, timeout, self.name)

    def close(self) -> None:
        """Deletes the variables."""
        evaluate(self._target, "", self._rank, session=self.name, end_session=True)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        try:
            self.close()
        except Exception:
            # The error of the block is more useful than the one that the run is gone too.
            if error is None:
                raise
