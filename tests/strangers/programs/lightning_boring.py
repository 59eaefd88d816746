"""Lightning's own demonstration models under its Trainer."""

import sys
import tempfile

import common
import lightning
from lightning.pytorch.demos import boring_classes

common.begin()
model = getattr(boring_classes, sys.argv[1])()
with tempfile.TemporaryDirectory() as directory:
    trainer = lightning.Trainer(
        max_epochs=2, limit_train_batches=4, limit_val_batches=2, accelerator="cpu", devices=1, logger=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=directory,
    )  # fmt: skip
    trainer.fit(model)
common.weights(model)
