"""trl's own scripts/{sft,dpo,reward}.py, unmodified: beside them only a tiny model and made-up conversations."""

import json
import os
import pathlib
import runpy
import sys
import tempfile

import common
import safetensors.torch
import tokenizers
import transformers

WORDS = ["[PAD]", "[EOS]", *"what is the colour of a red blue green stone bird leaf it i do not know".split()]


def say(*parts: str) -> list[dict[str, str]]:
    return [{"role": role, "content": text} for role, text in zip(("user", "assistant"), parts)]


def conversation(kind: str, index: int) -> dict[str, object]:
    colour, thing = WORDS[8 + index % 3], WORDS[11 + index // 3 % 3]
    question, answer, other = f"what is the colour of a {thing}", f"it is {colour}", "i do not know"
    if kind == "sft":
        return {"prompt": say(question), "completion": [{"role": "assistant", "content": answer}]}
    return {"chosen": say(question, answer), "rejected": say(question, other)}


def tokenizer() -> transformers.PreTrainedTokenizerFast:
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: at for at, word in enumerate(WORDS)}, "[PAD]"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", eos_token="[EOS]")
    made.chat_template = "{% for message in messages %}{{ message['content'] + ' [EOS] ' }}{% endfor %}"
    return made


kind = sys.argv[1]
common.begin()
with tempfile.TemporaryDirectory() as directory:
    os.environ["HF_HOME"] = f"{directory}/cache"
    os.chdir(directory)
    tokenizer().save_pretrained("model")
    config = transformers.LlamaConfig(
        vocab_size=len(WORDS), hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=64, pad_token_id=0, eos_token_id=1, bos_token_id=1, num_labels=1,
    )  # fmt: skip
    whole = transformers.LlamaForSequenceClassification if kind == "reward" else transformers.LlamaForCausalLM
    whole(config).save_pretrained("model")
    pathlib.Path("data").mkdir()
    for part, count in (("train", 32), ("test", 16)):
        lines = [json.dumps(conversation(kind, index)) for index in range(count)]
        pathlib.Path("data", f"{part}.jsonl").write_text("\n".join(lines))
    sys.argv = [
        kind, "--model_name_or_path", "model", "--dataset_name", "data", "--output_dir", "out", "--use_cpu", "--bf16", "no",
        "--per_device_train_batch_size", "4", "--max_steps", "8", "--eval_strategy", "steps", "--eval_steps", "4",
        "--logging_steps", "1", "--report_to", "none", "--save_strategy", "no", "--disable_tqdm", "True",
    ]  # fmt: skip
    runpy.run_module(f"trl.scripts.{kind}", run_name="__main__", alter_sys=True)
    common.weights(safetensors.torch.load_file("out/model.safetensors"))
