"""Fixtures of the agent's tests. Their imports are inside them, because not every test may import torch."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from eval_support import Collector
    from recording_support import Recorder


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    """A recorder of this process while the test runs."""
    import probe_agent.torch as agent
    from recording_support import Recorder

    agent.install()
    yield Recorder()
    agent.uninstall()


@pytest.fixture
def collector() -> Iterator[Collector]:
    """The collector's side of a runner. The streams are restored at its end."""
    from eval_support import PATIENCE, Collector, until
    from probe_agent.eval import job

    streams = sys.stdout, sys.stderr
    made = Collector()
    with pytest.MonkeyPatch.context() as patch:
        # On a busy machine an ended snippet may take a second to notice that, and is not reported as still running for it.
        patch.setattr(job, "GRACE_SECONDS", PATIENCE)
        yield made
    made.native.commands.put(None)
    made.thread.join(PATIENCE)
    assert not made.thread.is_alive()
    until("the streams to be what they were", lambda: (sys.stdout, sys.stderr) == streams)
