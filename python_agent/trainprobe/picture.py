"""A picture as SVG text."""

from __future__ import annotations


class Picture:
    """A picture. A notebook shows it; `str()` is the SVG, and :meth:`save` writes it to a file."""

    def __init__(self, svg: str) -> None:
        self._svg = svg

    def __str__(self) -> str:
        return self._svg

    def _repr_html_(self) -> str:
        return self._svg

    def save(self, path: str) -> None:
        """Writes the SVG to a file."""
        with open(path, "w", encoding="utf-8") as file:
            file.write(self._svg)
