"""Loops that libraries run: Hugging Face's Trainer and Lightning, with gradient accumulation."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from recording_support import Recorder
from torch import nn

torch.set_num_threads(1)
pytestmark = pytest.mark.skipif(sys.version_info < (3, 10), reason="today's releases need Python 3.10")

STEPS, ACCUMULATED, BATCH = 4, 2, 3


def check_steps(rows: dict, samples: int) -> None:
    """Every step is there once with its micro steps, its samples and all its parts."""
    steps = rows["python.steps"]
    assert [step["step"] for step in steps] == list(range(steps[0]["step"], steps[0]["step"] + STEPS))
    parts = [
        "data_time",
        "forward_time",
        "backward_time",
        "optimizer_time",
        "comm_time",
        "validation_time",
        "other_time",
    ]
    for step in steps:
        assert (step["micro_steps"], step["samples"], step["detail"]) == (ACCUMULATED, samples, True)
        assert all(step[part] > 0 for part in ("data_time", "forward_time", "backward_time", "optimizer_time")), step
        assert sum(step[part] for part in parts) == pytest.approx(step["duration"], rel=1e-9)
    assert rows["probe.drops"] == {}


def test_hugging_face_trainer(recorder: Recorder, tmp_path: Path) -> None:
    import transformers

    config = transformers.GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=2, n_head=2)
    model = transformers.GPT2LMHeadModel(config)
    data = [{"input_ids": torch.arange(8) + item, "labels": torch.arange(8) + item} for item in range(40)]
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path),
        max_steps=STEPS,
        per_device_train_batch_size=BATCH,
        gradient_accumulation_steps=ACCUMULATED,
        logging_steps=2,
        report_to=[],
        save_strategy="no",
        eval_strategy="steps",
        eval_steps=3,
        per_device_eval_batch_size=2,
        use_cpu=True,
        disable_tqdm=True,
    )
    recorder.take()
    transformers.Trainer(model=model, args=arguments, train_dataset=data, eval_dataset=data[:16]).train()
    rows = recorder.take()
    check_steps(rows, BATCH * ACCUMULATED)
    # Eight batches of validation after the third step are a part of the fourth, and change none of its other figures. Eight more
    # come after the last step.
    assert [step["validation_time"] > 0 for step in rows["python.steps"]] == [False] * 3 + [True]
    trace = rows["python.torch_trace"]
    calls = Counter((row["module"], row["stage"]) for row in trace)
    assert calls["GPT2LMHeadModel", "validation"] == 16
    for module in ("transformer.h.0.attn.c_attn", "transformer.h.1.mlp.c_fc", "lm_head"):
        assert calls[module, "forward"] == calls[module, "backward"] == STEPS * ACCUMULATED, module
    assert [row["module"] for row in trace if row["stage"] == "step"] == ["AdamW"] * STEPS
    assert {row["module"] for row in trace if row["depth"] == 0 and row["stage"] == "forward"} == {"GPT2LMHeadModel"}


def test_lightning(recorder: Recorder, tmp_path: Path) -> None:
    import lightning

    class Classifier(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))

        def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], index: int) -> torch.Tensor:
            x, y = batch
            loss = nn.functional.cross_entropy(self.net(x), y)
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    data = torch.utils.data.TensorDataset(torch.randn(60, 8), torch.randint(4, (60,)))
    trainer = lightning.Trainer(
        max_steps=STEPS,
        accumulate_grad_batches=ACCUMULATED,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=str(tmp_path),
    )
    recorder.take()
    trainer.fit(Classifier(), torch.utils.data.DataLoader(data, batch_size=BATCH))
    rows = recorder.take()
    check_steps(rows, BATCH * ACCUMULATED)
    calls = Counter((row["module"], row["stage"]) for row in rows["python.torch_trace"])
    # Lightning calls the model's parts from training_step: `net` is what is called, and the module it is in never is.
    assert calls["net", "forward"] == STEPS * ACCUMULATED
    assert calls["SGD", "step"] == STEPS
    for module in ("net.0", "net.2"):
        assert calls[module, "forward"] == calls[module, "backward"] == STEPS * ACCUMULATED, calls
