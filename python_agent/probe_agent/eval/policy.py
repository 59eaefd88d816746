"""The types that the parts of placement share."""

from __future__ import annotations

import ast
from typing import Protocol

from probe_agent.eval.values import AbstractValue


class BetweenSteps(Exception):
    """The snippet contains something that must not run beside training; the message says what."""


class SnippetWalk(Protocol):
    """The part of a walk over a snippet that the rules for single calls use."""

    def expression(self, node: ast.expr) -> AbstractValue:
        """The value of an expression; raises BetweenSteps where it must not run beside training."""

    def now_holds(self, node: ast.expr) -> None:
        """Notes that something live was put into the value of `node`."""


def words(node: ast.AST) -> str:
    """The source of a node, shortened."""
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 60 else text[:57] + "..."
