"""Fields of torch's RecordFunction: no header says where they are, and they are found in the words of one on the stack."""

from __future__ import annotations

import pytest
import torch
from probe_agent import _native

WORD = 8


@pytest.fixture(autouse=True)
def found() -> None:
    _native.find_record_function()


def test_a_sequence_number_that_earlier_calls_left_on_the_stack_is_not_taken_for_the_field() -> None:
    a, b = torch.ones(1, requires_grad=True), torch.ones(1)

    def plain() -> torch.Tensor:
        return torch.mul(a, b)

    def leaving() -> torch.Tensor:
        result = torch.mul(a, b)
        # The next operation's.
        _native.leave_on_stack([torch._C._autograd._get_sequence_nr()])
        return result

    assert _native.calibrate_record_function(leaving) == _native.calibrate_record_function(plain)


def test_inputs_that_earlier_calls_left_on_the_stack_are_not_taken_for_the_field() -> None:
    pairs = [(torch.zeros(2 + n), torch.ones(2 + n)) for n in range(5)]
    tag = 1
    # Pointer and length of three values: the first two of them are further down, where no frame writes before the callback.
    below = (70 * 6 - 2) * WORD

    def leave(place: int) -> None:
        to, source = pairs[place]
        _native.leave_on_stack([0, 3, to._cdata, tag, source._cdata, tag], below)

    def copy(place: int) -> tuple[int, int, int, bool]:
        to, source = pairs[place]
        to.copy_(source)
        leave(place + 1)
        return to._cdata, source._cdata, source.numel() * source.element_size(), source.is_contiguous()

    leave(0)
    _native.calibrate_operators(copy)
