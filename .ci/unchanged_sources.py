"""Gives the files of a fresh checkout the times that they had in the last run, if they have not changed since: cargo goes by
times, and would compile all of them again.

    unchanged_sources.py restore TARGET   at the beginning, before anything is built
    unchanged_sources.py keep TARGET      at the end

What the files were is kept in TARGET/ci-sources.json. It counts only if nothing else has been built in TARGET since, and if the
checkout is where it was: its path is in some of what was compiled.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]


def git(*arguments: str) -> str:
    """What a git command prints about this checkout."""
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def tracked() -> dict[str, str]:
    """Path -> the hash of its content in the index, which a clean checkout has on disk."""
    entries = (entry.split("\t", 1) for entry in git("ls-files", "-s", "-z").split("\0") if entry)
    return {path: properties.split()[1] for properties, path in entries}


def is_clean() -> bool:
    """Whether the files are those of the index."""
    return not git("status", "--porcelain", "-uno")


def built_since(target: pathlib.Path, kept: pathlib.Path) -> bool:
    """Whether something of this workspace was built after the file was written."""
    written = kept.stat().st_mtime_ns
    return any(
        file.stat().st_mtime_ns > written
        for folder in target.glob("*/.fingerprint/probe*")
        for file in (folder, *folder.iterdir())
    )


def restore(target: pathlib.Path, kept: pathlib.Path) -> str:
    """Sets the times of unchanged files, and says of how many, or why of none."""
    if not kept.exists():
        return "nothing is known of an earlier run"
    last = json.loads(kept.read_text())
    if last["root"] != str(ROOT):
        return "the earlier run was in another folder"
    if built_since(target, kept):
        return "something else has been built since the earlier run"
    unchanged = 0
    for path, content in tracked().items():
        before = last["files"].get(path)
        if before and before["content"] == content:
            os.utime(ROOT / path, ns=(before["modified"], before["modified"]))
            unchanged += 1
    return f"{unchanged} files are those of the earlier run"


def keep(kept: pathlib.Path) -> str:
    """Notes every file's content and time."""
    files = {
        path: {"content": content, "modified": (ROOT / path).stat().st_mtime_ns} for path, content in tracked().items()
    }
    kept.write_text(json.dumps({"root": str(ROOT), "files": files}))
    return f"{len(files)} files are noted for the next run"


def main() -> None:
    """Does what the command line says."""
    what, target = sys.argv[1], pathlib.Path(sys.argv[2])
    kept = target / "ci-sources.json"
    if not is_clean():
        kept.unlink(missing_ok=True)
        print("sources: this is no clean checkout")
        return
    print("sources:", restore(target, kept) if what == "restore" else keep(kept))


if __name__ == "__main__":
    main()
