"""The links of the documentation: `tests/links.py` fails where one leads nowhere.

Looks at README.md, the other pages of the repository's root, and docs/**/*.md. Every relative link leads to a file that is
there, every anchor to a heading of its page, every page of docs/ is in docs/SUMMARY.md, and no page of docs/ links out of
docs/, because the book has only what lies there.
"""

from __future__ import annotations

import pathlib
import re
import sys
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
SUMMARY = DOCS / "SUMMARY.md"

_CODE = re.compile(r"^(```|~~~).*?^\1[^\n]*$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
_FENCED = re.compile(r"^(```|~~~).*?^\1[^\n]*$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(<?([^)>\s]*)>?(?:\s+\"[^\"]*\")?\)")
_HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.MULTILINE)
_EXPLICIT = re.compile(r"<a (?:id|name)=\"([^\"]+)\"")


def pages() -> list[pathlib.Path]:
    """Every page that is checked."""
    return sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])


def anchors(text: str) -> set[str]:
    """The anchors that GitHub and mdbook make of headings, and those that are written out."""
    found: set[str] = set(_EXPLICIT.findall(text))
    times: dict[str, int] = {}
    for heading in _HEADING.findall(_FENCED.sub("", text)):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        anchor = re.sub(r"[^\w\- ]", "", words).strip().replace(" ", "-")
        again = times.get(anchor, 0)
        times[anchor] = again + 1
        found.add(f"{anchor}-{again}" if again else anchor)
    return found


def links(text: str) -> list[str]:
    """Where links lead that are relative; an empty one is a chapter of SUMMARY.md without a page."""
    found = _LINK.findall(_CODE.sub("", text))
    return [link for link in found if link and not re.match(r"[a-z][a-z+.-]*:", link)]


def problems() -> list[str]:
    """A line for each thing that is wrong."""
    texts = {page: page.read_text() for page in pages()}
    wrong = []
    for page, text in texts.items():
        name = page.relative_to(ROOT)
        for link in links(text):
            path, _, anchor = urllib.parse.unquote(link).partition("#")
            target = (page.parent / path).resolve() if path else page
            if not target.exists():
                wrong.append(f"{name}: {link}: there is no such file")
            elif DOCS in page.parents and DOCS not in target.parents:
                wrong.append(f"{name}: {link}: leads out of docs/, so it is broken in the book")
            elif anchor and target in texts and anchor not in anchors(texts[target]):
                wrong.append(f"{name}: {link}: {target.relative_to(ROOT)} has no such heading")
    listed = {(DOCS / link).resolve() for link in links(texts[SUMMARY])}
    missing = [page for page in texts if DOCS in page.parents and page != SUMMARY and page not in listed]
    wrong += [f"{page.relative_to(ROOT)}: is not in docs/SUMMARY.md" for page in missing]
    return wrong


def main() -> int:
    """Prints what is wrong; the exit status is 1 where anything is."""
    wrong = problems()
    for problem in wrong:
        print(problem, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
