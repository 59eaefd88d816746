"""How much of a batch of sequences is padding."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from recording_support import Recorder
from torch.nn.utils.rnn import pad_sequence
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader

torch.set_num_threads(1)

#: Samples of two, six and eight tokens, which are padded to eight.
TOKENS = [torch.tensor([5, 7]), torch.arange(3, 9), torch.arange(11, 19)]
PADDED = pad_sequence(TOKENS, batch_first=True)
SHARE = 8 / 24


def padding(recorder: Recorder, batches: list[Any], **options: Any) -> list[float | None]:
    """What is recorded of these batches, each the first one of its epoch."""
    for batch in batches:
        list(DataLoader([batch], batch_size=None, collate_fn=lambda given: given, **options))  # type: ignore[arg-type]
    return [row["padding"] for row in recorder.take()["python.data_trace"]]


def test_sequences_of_all_kinds(recorder: Recorder) -> None:
    mask = (PADDED != 0).long()
    features = pad_sequence([torch.ones(len(tokens), 4) for tokens in TOKENS], batch_first=True)
    full = torch.arange(24).reshape(3, 8)
    batches: list[tuple[Any, float | None]] = [
        (PADDED, SHARE),
        (PADDED.int(), SHARE),
        (torch.nn.functional.pad(PADDED[:, :6], (2, 0)), pytest.approx((2 + 2 + 2) / 24)),
        ({"token_type_ids": torch.zeros_like(PADDED), "attention_mask": mask, "input_ids": PADDED}, SHARE),
        ((torch.zeros(3), PADDED, full), SHARE),
        (features, SHARE),
        (full, 0.0),
        (full.float(), None),
        (mask, None),
        (mask.bool(), None),
        (torch.full((3, 8), 7), None),
        (PADDED[:, :7], None),
        (PADDED[:, ::2], None),
        (torch.zeros(0, 8, dtype=torch.long), None),
        (torch.zeros(3, 8, 0), None),
        ("words", None),
    ]
    assert padding(recorder, [batch for batch, _ in batches]) == [share for _, share in batches]


def test_the_loaders_batch_size_tells_samples_from_positions(recorder: Recorder) -> None:
    loader = DataLoader(TOKENS * 3, batch_size=3, collate_fn=lambda tokens: pad_sequence(tokens))  # type: ignore[arg-type]
    assert [batch.shape for batch in loader] == [(8, 3)] * 3
    assert [row["padding"] for row in recorder.take()["python.data_trace"]] == [SHARE, None, None]


def test_one_batch_of_eight_is_looked_at(recorder: Recorder) -> None:
    loader = DataLoader(range(20), batch_size=None, collate_fn=lambda _: PADDED)  # type: ignore[arg-type]
    list(loader)
    shares = [row["padding"] for row in recorder.take()["python.data_trace"]]
    assert [index for index, share in enumerate(shares) if share == SHARE] == [0, 8, 16]
    assert shares.count(None) == 17


def test_a_large_batch_is_looked_at_in_part(recorder: Recorder) -> None:
    large = torch.arange(1, 4096 * 1024 + 1).reshape(4096, 1024)
    large[:, 512:] = 0
    assert padding(recorder, [large]) == [0.5]


def test_memory_that_is_not_there_is_not_read(recorder: Recorder) -> None:
    emptied = PADDED.clone()
    emptied.untyped_storage().resize_(0)
    shorter = torch.arange(24).reshape(3, 8)
    shorter.untyped_storage().resize_(100)
    batches = [emptied, shorter, PADDED.to("meta"), PADDED.to_sparse(), PADDED.t(), PADDED.expand(2, 3, 8)[0].t()]
    assert padding(recorder, batches) == [None] * len(batches)


def test_modes_of_the_program_see_nothing(recorder: Recorder) -> None:
    seen: list[str] = []

    class Functions(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    class Operators(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    loader = DataLoader([PADDED], batch_size=None, collate_fn=lambda given: given)  # type: ignore[arg-type]
    iterator = iter(loader)
    with Functions(), Operators():
        next(iterator)
    # Torch's loader has a range of the profiler around each batch.
    assert [name for name in seen if "profiler" not in name] == []
    assert [row["padding"] for row in recorder.take()["python.data_trace"]] == [SHARE]


@pytest.mark.parametrize("workers", [0, 1])
def test_batches_of_workers(recorder: Recorder, workers: int) -> None:
    loader = DataLoader(TOKENS, batch_size=3, num_workers=workers, collate_fn=lambda tokens: pad_sequence(tokens, True))  # type: ignore[arg-type]
    list(loader)
    assert [row["padding"] for row in recorder.take()["python.data_trace"]] == [SHARE]
