import tempfile

import common
import torch
import transformers

common.begin()
config = transformers.GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=2, n_head=2)
model = transformers.GPT2LMHeadModel(config)
data = [{"input_ids": torch.arange(8) + item, "labels": torch.arange(8) + item} for item in range(32)]
with tempfile.TemporaryDirectory() as directory:
    arguments = transformers.TrainingArguments(
        output_dir=directory, max_steps=8, per_device_train_batch_size=4, gradient_accumulation_steps=2, logging_steps=1,
        eval_strategy="steps", eval_steps=4, save_steps=8, report_to=[], use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    trainer = transformers.Trainer(model=model, args=arguments, train_dataset=data, eval_dataset=data[:8])
    trainer.remove_callback(transformers.PrinterCallback)  # It prints times.
    trainer.train()
for entry in trainer.state.log_history:
    if "loss" in entry:
        common.said("loss", entry["loss"])
common.weights(model)
