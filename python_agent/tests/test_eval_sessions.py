"""Variables that snippets of one session share, and the messages when a session is dropped."""

from __future__ import annotations

import gc
import weakref
from typing import Any

from eval_support import Collector, train_until_done
from probe_agent.eval import sessions
from probe_agent.eval.sessions import MAX_SESSIONS, Sessions


def test_variables_live_for_their_session_alone(collector: Collector) -> None:
    assert collector.run("kept = 1\ndef f(): return kept", session="mine")[2] == "ok"
    assert collector.run("kept + 1", session="mine")[0] == "2\n"
    assert "NameError" in collector.run("kept", session="other")[3]
    assert "NameError" in collector.run("kept")[3]
    # A function of an earlier snippet sees the assignments of a later one.
    assert collector.run("kept = 5\nf()", session="mine")[0] == "5\n"
    assert collector.run("del kept", session="mine")[2] == "ok"
    assert "NameError" in collector.run("kept", session="mine")[3]
    # An error undoes no assignment.
    assert collector.run("kept = 6\n1 / 0", session="mine")[2] == "error"
    assert collector.run("kept", session="mine")[0] == "6\n"


def test_both_places_share_a_session_and_each_is_placed_by_what_it_holds(collector: Collector) -> None:
    collector.send("arm", "here = [1, 2]", session="mine")
    collector.armed()
    assert train_until_done(collector)[2] == "ok"
    collector.send("decide", "here[0]", session="mine")
    assert collector.reply()[:3] == ("placed", 2, "now")
    assert collector.done()[0] == "1\n"
    collector.send("decide", "here.train_step()", session="mine")
    assert collector.reply()[:3] == ("placed", 3, "step")


def test_a_session_is_ended(collector: Collector) -> None:
    collector.run("kept = 1", session="mine")
    assert collector.run("", session="mine", end_session=True)[2] == "ok"
    assert "NameError" in collector.run("kept", session="mine")[3]


def test_of_too_many_the_one_used_longest_ago_goes_and_that_is_said(collector: Collector) -> None:
    for name in sessions.SESSIONS.names():
        sessions.SESSIONS.end(name)
    for number in range(MAX_SESSIONS):
        assert collector.run(f"kept = {number}", session=f"s{number}")[1] == ""
    collector.run("kept", session="s0")
    messages = collector.run("kept = 'one too many'", session="extra")[1]
    assert messages == f"probe: session 's1' was dropped with its variables: {MAX_SESSIONS} are kept at most\n"
    assert collector.run("kept", session="s0")[0] == "0\n"
    _, messages, _, error = collector.run("kept", session="s1")
    assert "NameError" in error
    assert "session 's1' starts empty: its variables were dropped for another session's" in messages


def test_what_training_made_is_not_kept_alive_by_a_session() -> None:
    class Batch:
        pass

    made = Sessions()
    assert made.open("mine") == []
    batch = Batch()
    gone = weakref.ref(batch)
    names: dict[str, Any] = {"batch": batch, "step": 1, "__builtins__": {}}
    with made.lent("mine", names) as lent:
        exec("seen = step\nstep = 2", lent)
    assert made.variables("mine") == {"seen": 1, "step": 2}
    # A name of training that the session has assigned stays the session's.
    with made.lent("mine", {"step": 3, "__builtins__": {}}) as lent:
        assert lent["step"] == 2
    del names, batch, lent
    gc.collect()
    assert gone() is None


def test_the_last_snippet_of_a_session_leaves_no_names_of_training(collector: Collector) -> None:
    local_name = "of the test"  # noqa: F841
    collector.run("mine = 1", session="names")
    assert sessions.SESSIONS.variables("names") == {"mine": 1}
