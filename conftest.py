"""How all Python tests are shared out between processes (`pytest -n 3 --dist loadgroup`)."""

from __future__ import annotations

import pytest

#: Fixtures that a run of a program stands behind, which lasts longer than a test.
SHARED = ("two_ranks", "tiny_home", "stubborn_training", "plain_training")


def pytest_itemcollected(item: pytest.Item) -> None:
    """The agent's tests are in the process that they run in, so a file's stay together; end to end each test is on its own,
    but for those that share a run."""
    group = item.path.stem if "python_agent" in item.path.parts else None
    for name in SHARED:
        if name in getattr(item, "fixturenames", ()):
            group = name
    if group:
        item.add_marker(pytest.mark.xdist_group(group))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Fails where pytest-xdist keeps no groups: it does so by adding their names to node ids, and with a pytest that it does not
    fit it leaves them out and says nothing."""
    if hasattr(session.config, "workerinput") and session.config.getoption("loadgroup", False):
        apart = [
            item.nodeid for item in session.items if item.get_closest_marker("xdist_group") and "@" not in item.nodeid
        ]
        if apart:
            raise pytest.UsageError(f"pytest-xdist does not keep groups together with this pytest: {apart[0]}")
