"""Snippets of `probe eval` in this process.

:mod:`placement` decides from the syntax tree where one belongs, :mod:`namespace` finds the names that the training code
sees, :mod:`snippet` runs it, :mod:`runner` takes the collector's commands, and :mod:`boundary` is where training stops
between two steps.
"""
