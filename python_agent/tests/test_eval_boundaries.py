"""Snippets in loops as people and libraries write them: the boundary between two steps is found, names are there, and
the losses are those of a run without snippets, bit by bit."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

import pytest
import torch
from eval_support import PATIENCE, Collector, Native
from probe_agent import _native
from probe_agent._native import ThreadMode
from probe_agent.eval import boundary
from torch import nn

torch.set_num_threads(1)

STEPS, ACCUMULATED, BATCH = 5, 2, 4

#: Called after each optimizer's step, still within it.
Hook = Callable[..., None]


class Training(Native):
    """The real native half for training, with commands and replies of the test's."""

    def step(self) -> int:
        return _native.step()

    def want_boundary(self, wanted: bool) -> None:
        _native.want_boundary(wanted)

    def thread_mode(self, mode: ThreadMode) -> ThreadMode:
        return _native.thread_mode(mode)


@pytest.fixture
def collector() -> Iterator[Collector]:
    import probe_agent.torch as agent

    agent.install()
    _native.set_boundary_callback(boundary.run_pending)
    made = Collector(Training())
    yield made
    made.native.commands.put(None)
    made.thread.join(PATIENCE)
    _native.set_boundary_callback(None)
    agent.uninstall()
    assert not made.thread.is_alive() and _native.problem() == ""


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2), nn.ReLU(), nn.Linear(16, 4))


def data(items: int = 80) -> torch.utils.data.TensorDataset:
    torch.manual_seed(2)
    return torch.utils.data.TensorDataset(torch.randn(items, 8), torch.randint(4, (items,)))


def optimizer_of(model: nn.Module, hook: Hook) -> torch.optim.Optimizer:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.register_step_post_hook(hook)
    return optimizer


def gradient_accumulation(hook: Hook, _: Path) -> list[float]:
    model, losses, marker = network(), [], "accumulates"  # noqa: F841
    optimizer = optimizer_of(model, hook)
    for index, (x, y) in enumerate(torch.utils.data.DataLoader(data(), BATCH, shuffle=True)):
        loss = nn.functional.cross_entropy(model(x), y) / ACCUMULATED
        loss.backward()
        losses.append(loss.item())
        if index % ACCUMULATED == ACCUMULATED - 1:
            optimizer.step()
            optimizer.zero_grad()
        if len(losses) == STEPS * ACCUMULATED:
            break
    return losses


def grad_scaler(hook: Hook, _: Path) -> list[float]:
    """The step of the second batch is skipped, so one step has two batches."""
    model, losses, marker = network(), [], "scales"  # noqa: F841
    optimizer, scaler = optimizer_of(model, hook), torch.amp.GradScaler("cpu", init_scale=8.0)
    for x, y in torch.utils.data.DataLoader(data(), BATCH, shuffle=True):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss * (float("inf") if len(losses) == 1 else 1.0)).backward()
        losses.append(loss.item())
        scaler.step(optimizer)
        scaler.update()
        if len(losses) == STEPS + 1:
            break
    return losses


def iterable_dataset(hook: Hook, _: Path) -> list[float]:
    class Stream(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
        def __iter__(self) -> Iterator[tuple[torch.Tensor, ...]]:
            yield from data()

    model, losses, marker = network(), [], "streams"  # noqa: F841
    optimizer = optimizer_of(model, hook)
    for x, y in torch.utils.data.DataLoader(Stream(), BATCH):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
        if len(losses) == STEPS:
            break
    return losses


def no_loader(hook: Hook, _: Path) -> list[float]:
    model, losses, marker = network(), [], "draws"  # noqa: F841
    optimizer = optimizer_of(model, hook)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = model(torch.randn(BATCH, 8)).square().mean()
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
    return losses


def within_a_generator(hook: Hook, _: Path) -> list[float]:
    """Each step is made inside a generator, which the loop around it only drains."""

    def steps() -> Iterator[float]:
        model, losses, marker = network(), [], "yields"  # noqa: F841
        optimizer = optimizer_of(model, hook)
        for x, y in torch.utils.data.DataLoader(data(), BATCH, shuffle=True):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            losses.append(loss.item())
            optimizer.step()
            yield losses[-1]
            if len(losses) == STEPS:
                break

    return list(steps())


def lightning(hook: Hook, directory: Path) -> list[float]:
    lightning = pytest.importorskip("lightning")
    losses: list[float] = []
    marker = "lightning"  # noqa: F841

    class Classifier(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            x, y = batch
            loss = nn.functional.cross_entropy(self.net(x), y)
            losses.append(loss.item())
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return optimizer_of(self, hook)

    model = Classifier()
    lightning.Trainer(
        max_steps=STEPS, accumulate_grad_batches=ACCUMULATED, accelerator="cpu", logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        default_root_dir=str(directory),
    ).fit(model, torch.utils.data.DataLoader(data(), BATCH, shuffle=True))  # fmt: skip
    return losses


def hugging_face(hook: Hook, directory: Path) -> list[float]:
    transformers = pytest.importorskip("transformers")
    losses: list[float] = []
    marker = "hugging face"  # noqa: F841
    config = transformers.GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=1, n_head=2)
    torch.manual_seed(1)

    class Model(transformers.GPT2LMHeadModel):  # type: ignore[misc, name-defined]
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            out = super().forward(*args, **kwargs)
            losses.append(out.loss.item())
            return out

    model = Model(config)
    items = [{"input_ids": torch.arange(8) + item, "labels": torch.arange(8) + item} for item in range(50)]
    arguments = transformers.TrainingArguments(
        output_dir=str(directory), max_steps=STEPS, per_device_train_batch_size=BATCH, report_to=[], use_cpu=True,
        gradient_accumulation_steps=ACCUMULATED, save_strategy="no", logging_strategy="no", disable_tqdm=True,
        remove_unused_columns=False,
    )  # fmt: skip
    optimizer = optimizer_of(model, hook)
    transformers.Trainer(model=model, args=arguments, train_dataset=items, optimizers=(optimizer, None)).train()
    return losses


#: Loop, its marker, and how many batches have been trained on when two steps are finished.
LOOPS = [
    (gradient_accumulation, "accumulates", 2 * ACCUMULATED),
    (grad_scaler, "scales", 3),
    (iterable_dataset, "streams", 2),
    (no_loader, "draws", 2),
    (within_a_generator, "yields", 2),
    *([] if sys.version_info < (3, 10) else [
        (lightning, "lightning", 2 * ACCUMULATED),
        (hugging_face, "hugging face", 2 * ACCUMULATED),
    ]),
]  # fmt: skip


def arm(collector: Collector, code: str) -> None:
    """Has a snippet wait for the next boundary."""
    collector.send("arm", code)
    collector.armed()


def answer(collector: Collector) -> tuple[str, str, str, int]:
    """The output, the outcome, the error, and the number of finished steps."""
    printed = b""
    while True:
        reply = collector.reply()
        if reply[0] == "output":
            printed += reply[3]
        elif reply[0] == "done":
            return printed.decode(), reply[2], reply[3], reply[6]


@pytest.mark.parametrize(("loop", "marker", "batches"), LOOPS, ids=lambda value: getattr(value, "__name__", ""))
def test_the_boundary_and_the_names_are_found_and_losses_are_the_same(
    collector: Collector, tmp_path: Path, loop: Callable[[Hook, Path], list[float]], marker: str, batches: int
) -> None:
    quiet = loop(lambda *_: None, tmp_path)
    # An optimizer that lives on, in cycles of a library's objects, would be taken for one of two.
    gc.collect()
    began, steps = _native.step(), 0
    seen: list[tuple[str, str, str, int]] = []

    def hook(*_: Any) -> None:
        nonlocal steps
        steps += 1
        if steps == 2:
            # Training is deep in the optimizer, in whatever loop that is. Beside it:
            collector.send("decide", "print(marker, len(losses), type(model).__name__)")
            assert collector.reply()[2] == "now"
            seen.append(answer(collector))
            # Between two steps, which comes later.
            arm(collector, "print(marker, len(losses), sum(p.numel() for p in model.parameters()) > 0)")
        elif steps == 3:
            seen.append(answer(collector))

    losses = loop(hook, tmp_path)
    beside, between = seen
    assert beside[0].startswith(f"{marker} {batches} ") and beside[1:3] == ("ok", ""), beside
    # Right behind the second step, with none of the third step's batches.
    assert between == (f"{marker} {batches} True\n", "ok", "", began + 2)
    assert losses == quiet and len(set(losses)) == len(losses)


@pytest.mark.skipif(sys.version_info < (3, 10), reason="today's releases need Python 3.10")
def test_names_are_found_in_a_callback_of_a_library(collector: Collector, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    seen: list[str] = []

    class Watches(transformers.TrainerCallback):  # type: ignore[misc, name-defined]
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            of_the_callback = state.global_step  # noqa: F841
            seen.append(collector.run("print(of_the_callback, outer, state.global_step)")[0])

    outer = "of the test"  # noqa: F841
    config = transformers.GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=1, n_head=2)
    items = [{"input_ids": torch.arange(8), "labels": torch.arange(8)} for _ in range(8)]
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), max_steps=2, per_device_train_batch_size=BATCH, report_to=[], use_cpu=True,
        save_strategy="no", logging_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    model = transformers.GPT2LMHeadModel(config)
    transformers.Trainer(model=model, args=arguments, train_dataset=items, callbacks=[Watches()]).train()
    assert seen == ["1 of the test 1\n", "2 of the test 2\n"]


def test_a_snippet_that_trains_in_between_leaves_the_step_count_alone(collector: Collector, tmp_path: Path) -> None:
    began = _native.step()
    answers: list[tuple[str, str, str, int]] = []

    def hook(*_: Any) -> None:
        if _native.step() == began + 1 and not answers:
            answers.append(("", "", "", -1))
            arm(collector, "before = len(losses)\nmodel(x).sum().backward(); optimizer.step(); print(before)")

    gradient_accumulation(hook, tmp_path)
    assert answer(collector)[1:] == ("ok", "", began + 2)
    assert _native.step() == began + STEPS
