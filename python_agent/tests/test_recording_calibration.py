"""Fields of torch's RecordFunction: no header says where they are, so they are found in the memory of one on the stack."""

from __future__ import annotations

import torch
from probe_agent import _native


def test_a_sequence_number_that_earlier_calls_left_on_the_stack_is_not_taken_for_the_field() -> None:
    _native.find_record_function()
    a, b = torch.ones(1, requires_grad=True), torch.ones(1)

    def plain() -> torch.Tensor:
        return torch.mul(a, b)

    def leaving() -> torch.Tensor:
        result = torch.mul(a, b)
        # The next operation's.
        _native.leave_on_stack(torch._C._autograd._get_sequence_nr())
        return result

    assert _native.calibrate_record_function(leaving) == _native.calibrate_record_function(plain)
