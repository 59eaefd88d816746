"""What a snippet makes of its output, values and exceptions: any size, any characters, and methods that raise, loop or print.
It is cut where it is made, said to be, and neither training's streams nor the connection notice."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Iterator

import pytest
from eval_support import PATIENCE, Collector
from probe_agent.eval import boundary, tracebacks

MEGABYTE = 1_000_000
#: The largest text about a value or an exception (bytes).
BOUND = 7 * tracebacks.LONGEST


def between_steps(collector: Collector, code: str, **more: int) -> tuple[str, str, str, str]:
    """Runs a snippet as training does at a boundary."""
    collector.send("arm", code, step=-1, **more)
    collector.armed()
    boundary.run_pending()
    return collector.done()


def pieces(collector: Collector) -> Iterator[bytes]:
    while (reply := collector.reply())[0] == "output":
        yield reply[3]
    collector.native.replies.put(reply)


def test_a_write_of_any_size_is_sent_in_pieces_of_whole_characters(collector: Collector) -> None:
    code = "import sys\nprint('é€😀' * 300_000, end='')\nsys.stdout.buffer.write(memoryview(b'ab' * 100_000).cast('H')); '\\udc80'"
    collector.send("decide", code, at="now")
    assert collector.reply()[0] == "placed"
    sent = list(pieces(collector))
    assert collector.done()[2] == "ok" and max(map(len, sent)) <= 1 << 16
    text = "".join(piece.decode() for piece in sent)
    assert text == "é€😀" * 300_000 + "ab" * 100_000 + "'\\udc80'\n"


def test_what_is_beyond_the_limit_is_counted_and_never_sent(collector: Collector) -> None:
    """An é is two bytes, so the limit lies within one."""
    out, _, outcome, error = collector.run("print('é' * 10_000_000)", max_output=100_001)
    assert out == "é" * 50_000
    assert (outcome, error) == (
        "output_limit",
        "it printed more than its limit of 100001 bytes, and the last 19900000 bytes are left out",
    )
    # A snippet that swallows the interrupt has printed too much all the same. It ends here, because the agent soon interrupts it
    # again.
    swallows = "for _ in range(2):\n  try: print('x' * 60)\n  except BaseException: pass"
    out, _, outcome, error = collector.run(swallows, max_output=100)
    assert (out, outcome) == ("x" * 60 + "\n" + "x" * 39, "output_limit") and "the last 21 bytes" in error


def test_beside_training_a_snippet_waits_for_the_connection_and_can_be_ended_there(collector: Collector) -> None:
    collector.native.room.clear()
    collector.send("decide", "print('x' * 10_000_000)", at="now", timeout_s=1.0)
    assert collector.reply()[0] == "placed"
    assert collector.done()[0::2] == ("", "timeout")
    # Between two steps training would wait with it.
    assert between_steps(collector, "print('x')")[0::2] == ("x\n", "ok")
    collector.native.room.set()


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (f"raise ValueError('x' * {30 * MEGABYTE})", "x... (29990000 more characters)"),
        (f"raise ValueError('x\\n' * {10 * MEGABYTE})", "... (19990000 more characters)"),
        (f"raise type('X' * {30 * MEGABYTE}, (Exception,), {{}})('why')", "X... (29999500 more characters): why"),
        (f"raise SystemExit('x' * {30 * MEGABYTE})", "SystemExit: xxx"),
        (f"raise SyntaxError('m' * {MEGABYTE}, ('f' * {MEGABYTE}, 1, {MEGABYTE}, 'l' * {2 * MEGABYTE}))", "^\nSyntaxError: mmm"),
        ("compile('x = (' + '1+' * 1_000_000, 'f', 'exec')", "SyntaxError: '(' was never closed"),
        (f"'{'y' * MEGABYTE}'; 1 / 0", "ZeroDivisionError: division by zero"),
        ("e = ValueError('a')\ne.__notes__ = ['n' * 1000] * 10_000\nraise e", "nnn\n(9980 more notes)"),
        (f"e = ValueError('a')\ne.__notes__ = 'n' * {MEGABYTE}\nraise e", "nnn... (990002 more characters)"),
        ("e = None\nfor n in range(10_000): e, before = ValueError(n), e; e.__cause__ = before\nraise e", "ValueError: 9999"),
        ("a, b = ValueError('a'), ValueError('b')\na.__context__, b.__context__ = b, a\nraise a", "ValueError: a"),
    ],
    ids=["message", "lines", "class", "exit", "syntax", "compile", "line", "notes", "note", "chain", "circle"],
)  # fmt: skip
def test_an_exception_of_any_size_is_cut_and_said_to_be(collector: Collector, code: str, words: str) -> None:
    _, _, outcome, error = collector.run(code)
    assert (outcome, words in error.rpartition("\n\n")[2]) == ("error", True), error[-2000:]
    assert len(error.encode()) < BOUND
    assert collector.run("'next'")[0] == "'next'\n"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="there are no groups")
@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("raise ExceptionGroup('g', [ValueError('x' * 1000)] * 10_000)", ["g (10000 sub-exceptions)", "(9986 more exceptions)"]),
        ("e = ValueError('x')\nfor _ in range(10_000): e = ExceptionGroup('g', [e])\nraise e", ["g (1 sub-exception)"]),
        ("e = ValueError('x')\nfor _ in range(12): e = ExceptionGroup('g', [e] * 15)\nraise e", ["g (15 sub-exceptions)"]),
    ],
    ids=["wide", "deep", "both"],
)  # fmt: skip
def test_a_group_of_any_size_is_cut_and_counted(collector: Collector, code: str, words: list[str]) -> None:
    _, _, outcome, error = collector.run(code)
    assert outcome == "error" and all(word in error for word in words), error[-2000:]
    assert len(error.encode()) < BOUND


def test_a_deep_stack_has_its_ends(collector: Collector) -> None:
    code = "def f(n):\n  if n: g(n)\n  else: raise ValueError('deep')\ndef g(n): f(n - 1)\nf(300)"
    _, _, _, error = collector.run(code)
    assert "[402 more frames]" in error and "in <module>" in error and error.endswith("ValueError: deep")


def test_an_exception_is_as_python_says_it(collector: Collector) -> None:
    """Stand-ins have the messages of the exceptions that they stand for."""
    code = "class Own(Exception): pass\ntry: {}['k']\nexcept KeyError as e: raise Own('why') from e"
    _, _, _, error = collector.run(code)
    first, between, last = error.split("\n\n")
    assert first.endswith("KeyError: 'k'") and "direct cause" in between
    assert last.startswith("Traceback (most recent call last):\n  File ") and last.endswith("__probe__.Own: why")
    assert "The above" not in collector.run(code.replace("from e", "from None"))[3]
    collector.send("decide", "x = 1\nif x == 1\n  pass", at="now")
    wrong = collector.done()[3]
    assert "line 2" in wrong and "if x == 1\n" in wrong and "^" in wrong and wrong.endswith("SyntaxError: expected ':'")
    if sys.version_info >= (3, 10):
        assert collector.run("number = 1\nprint(nunber)")[3].endswith(
            "name 'nunber' is not defined. Did you mean: 'number'?"
        )
        # Python's own suggestions would run the property.
        own = "class Own:\n  @property\n  def value(self): print('run')\nself = Own()\nvalue"
        assert collector.run(own)[0] == "" and "is not defined" in collector.run(own)[3]
        assert "Did you mean: 'value'" in collector.run(own.replace("\nvalue", "\nself.valeu"))[3]
        assert "Did you mean: 'sqrt'" in collector.run("import math\nmath.sqtr")[3]
    if sys.version_info >= (3, 11):
        assert collector.run("e = ValueError('a'); e.add_note('so'); raise e")[3].endswith("ValueError: a\nso")


@pytest.mark.parametrize(
    "code",
    [
        "raise ValueError('\\udc80')",
        "raise SystemExit('\\udc80')",
        "exec(compile('1 / 0', 'file\\udc80', 'exec'))",
        "compile('x = (', 'file\\udc80', 'exec')",
        "e = ValueError(1); e.__notes__ = ['\\udc80']; print(e.__notes__[0]); raise e",
        "def f(): 1 / 0\nf.__code__ = f.__code__.replace(co_name='\\udc80')\ntry: f()\nfinally: print('\\udc80')",
    ],
    ids=["message", "exit", "file", "syntax", "note", "function"],
)
def test_halves_of_surrogate_pairs_are_said_as_python_says_them(collector: Collector, code: str) -> None:
    out, _, outcome, error = collector.run(code)
    error.encode()
    assert outcome == "error" and "\\udc80" in out + error


MISCHIEF = {
    "raises": "raise ValueError('in it')",
    "exits": "raise SystemExit(3)",
    "interrupts": "raise KeyboardInterrupt",
    "recurses": "return str(self) + repr(self)",
    "no text": "return 3",
}


@pytest.mark.parametrize("where", ["value", "in a list", "message", "note", "exit"])
@pytest.mark.parametrize("how", MISCHIEF)
@pytest.mark.parametrize("at", ["now", "step"])
def test_methods_that_misbehave_are_the_snippets_error(collector: Collector, where: str, how: str, at: str) -> None:
    code = (
        f"class A(Exception):\n  def __str__(self): {MISCHIEF[how]}\n  __repr__ = __str__\n"
        + {
            "value": "A()",
            "in a list": "[[A()]]",
            "message": "raise A()",
            "note": "e = ValueError(1); e.__notes__ = [A()]; raise e",
            "exit": "raise SystemExit(A())",
        }[where]
    )
    outcome, error = (collector.run(code) if at == "now" else between_steps(collector, code))[2:]
    assert outcome == "error"
    if where in ("message", "exit") or (where == "note" and sys.version_info >= (3, 11)):
        assert "A whose str() raised " in error


@pytest.mark.parametrize("code", ["A()", "raise A()", "raise SystemExit(A())"])
def test_methods_that_loop_or_print_are_ended(collector: Collector, code: str) -> None:
    loops = "class A(Exception):\n  def __str__(self):\n    while True: pass\n  __repr__ = __str__\n"
    assert collector.run(loops + code, timeout_s=1.0)[2] == "timeout"
    prints = loops.replace("while True: pass", "print('p' * 1_000_000); return 'q'")
    out, _, outcome, _ = collector.run(prints + code, max_output=1000)
    assert (out, outcome) == ("p" * 1000, "output_limit")


def test_a_text_of_a_class_of_its_own_is_read_without_asking_it(collector: Collector) -> None:
    code = """
import sys
class S(str):
    def __str__(self): raise ValueError('str')
    def __len__(self): return 1 << 60
    def __getitem__(self, index): raise ValueError('item')
    def encode(self, *how): raise ValueError('encode')
class A:
    def __repr__(self): return S('r' * 20_000)
sys.stdout.write(S('hello\\n'))
A()
"""
    out, _, outcome, error = collector.run(code)
    assert (outcome, error) == ("ok", "")
    assert out.startswith("hello\nrrr") and "10000 more characters" in out


@pytest.mark.parametrize("at", ["now", "step"])
@pytest.mark.parametrize(
    ("code", "outcome", "said"),
    [
        ("sys.stdout = None; print('x')", "ok", True),
        ("sys.stdout = io.StringIO(); print('x')", "ok", True),
        ("del sys.stdout, sys.stderr", "ok", True),
        ("del sys.stdout\nprint('x')", "error", True),
        ("sys.stdout.close()", "ok", False),
        ("sys.stdout.close()\n'x'", "error", False),
    ],
    ids=["none", "replaced", "deleted", "printed", "closed", "shown"],
)
def test_streams_that_a_snippet_replaces_are_put_back(
    collector: Collector, at: str, code: str, outcome: str, said: bool
) -> None:
    streams = sys.stdout, sys.stderr
    code = f"import io, sys\n{code}"
    _, err, ended, _ = collector.run(code) if at == "now" else between_steps(collector, code)
    assert (ended, "put back: sys.stdout" in err) == (outcome, said)
    assert (sys.stdout, sys.stderr) == streams and not sys.stdout.closed


def test_whoever_keeps_a_stream_of_a_snippets_has_trainings_afterwards(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the training thread, where the next thing that is printed there is training's."""
    kept = logging.getLogger("test_eval_large")
    monkeypatch.setattr(kept, "handlers", [])
    stream = io.TextIOWrapper(io.BytesIO(), write_through=True)
    monkeypatch.setattr(sys, "stdout", stream)
    code = """
import builtins, logging, sys
logging.getLogger('test_eval_large').addHandler(logging.StreamHandler(sys.stdout))
builtins.kept = sys.stdout.buffer
"""
    assert between_steps(collector, code, max_output=10)[2] == "ok"
    kept.warning("of training's, and longer than the snippet's limit")
    sys.modules["builtins"].__dict__.pop("kept").write(b"raw\n")
    assert stream.buffer.getvalue() == b"of training's, and longer than the snippet's limit\nraw\n"  # type: ignore[attr-defined]


def test_threads_of_a_snippet_print_where_training_does(
    collector: Collector, capsys: pytest.CaptureFixture[str]
) -> None:
    code = """
import sys, threading
def late(out=sys.stdout):
    over.wait()
    print('late', file=out)
over = threading.Event()
thread = threading.Thread(target=late, daemon=True)
thread.start()
"""
    assert collector.run(f"{code}\nsys.modules['builtins'].kept = (over, thread)")[:3] == ("", "", "ok")
    over, thread = sys.modules["builtins"].__dict__.pop("kept")
    over.set()
    thread.join(PATIENCE)
    assert capsys.readouterr().out == "late\n"


def test_a_keyboard_interrupt_that_a_snippet_raises_itself_is_its_error(collector: Collector) -> None:
    outcome, error = between_steps(collector, "raise KeyboardInterrupt('mine')")[2:]
    assert outcome == "error" and error.endswith("KeyboardInterrupt: mine")
