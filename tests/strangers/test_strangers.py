"""Programs of others do the same plain and watched, and what they do is recorded: run.py and manifest.py beside this file."""

from __future__ import annotations

import pytest
from manifest import PROGRAMS, Program
from run import compare, site


@pytest.fixture(scope="session")
def packages() -> None:
    """The packages of the programs that are not always run. Where they can't be had, these tests fail: pip is tried once."""
    site()


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(program, id=program.name, marks=[] if program.always else [pytest.mark.extended])
        for program in PROGRAMS
    ],
)
def test_a_program_of_others_is_the_same_and_recorded(program: Program, request: pytest.FixtureRequest) -> None:
    if not program.always:
        request.getfixturevalue("packages")
    assert compare(program).differences == []
