"""Healthy programs by the dozen: networks, loops and loaders put together as people do (`variants.py NAME [--steps N]`)."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import random


@dataclasses.dataclass(frozen=True)
class Variant:
    #: A function of networks.py.
    task: str
    #: The training loop, as MODULE.FUNCTION.
    loop: str
    #: The size of a batch, or of what replaces one.
    size: int = 32
    steps: int = 180
    ranks: int = 1
    #: 0 leaves it to torch, which takes all processors.
    threads: int = 1
    options: tuple[tuple[str, object], ...] = ()
    #: The argument of the function of networks.py: a width or a length.
    given: int | None = None


VARIANTS = {
    # One network, one process, one optimizer.
    "mlp-plain": Variant("mlp", "loops.plain", 128),
    "mlp-all-threads": Variant("mlp", "loops.plain", 256, 150, threads=0),
    "mlp-bar": Variant("mlp", "loops.bar", 64),
    "mlp-scheduled": Variant("mlp", "loops.scheduled", 128),
    "mlp-averaged": Variant("mlp", "loops.averaged", 128),
    "mlp-sharpness": Variant("mlp", "loops.sharpness", 128),
    "mlp-lbfgs": Variant("mlp", "loops.lbfgs", 128, 160),
    "mlp-compiled": Variant("mlp", "loops.compiled", 128),
    "mlp-distilled": Variant("mlp", "loops.distilled", 128),
    "mlp-saved": Variant("mlp", "loops.saved", 128, 400),
    "mlp-sizes": Variant("mlp", "loops.sizes", 192),
    "tiny-plain": Variant("tiny", "loops.plain", 32, 2000),
    "tiny-logged": Variant("tiny", "loops.logged", 32, 1500),
    "linear-momentum": Variant("linear", "loops.momentum", 64, 2000),
    "resnet-logged": Variant("resnet", "loops.logged", 8),
    "resnet-frozen": Variant("resnet", "loops.frozen", 8),
    "resnet-validated": Variant("resnet", "loops.validated", 8),
    "resnet-all-threads": Variant("resnet", "loops.plain", 2, 120, threads=0),
    "unet-plain": Variant("unet", "loops.plain", 8),
    "unet-autocast": Variant("unet", "loops.autocast", 8),
    "gru-scheduled": Variant("gru", "loops.scheduled", 16),
    "lstm-validated": Variant("lstm", "loops.validated", 16),
    "gpt-plain": Variant("gpt", "loops.plain", 8),
    "gpt-scheduled": Variant("gpt", "loops.scheduled", 8),
    "gpt-accumulated": Variant("gpt", "loops.accumulated", 4, 150),
    "gpt-autocast": Variant("gpt", "loops.autocast", 8),
    "gpt-lengths": Variant("gpt", "loops.lengths", 4, given=96),
    "gpt-curriculum": Variant("gpt", "loops.curriculum", 4, given=96),
    "gpt-low-rank": Variant("gpt", "special.low_rank", 8),
    "gpt-distilled": Variant("gpt", "loops.distilled", 4),
    "gpt-saved": Variant("gpt", "loops.saved", 8),
    "gpt-all-threads": Variant("gpt", "loops.bar", 4, 150, threads=0),
    "vit-scheduled": Variant("vit", "loops.scheduled", 16),
    "vit-averaged": Variant("vit", "loops.averaged", 16),
    "vae-logged": Variant("vae", "loops.logged", 128),
    "vae-momentum": Variant("vae", "loops.momentum", 64),
    "graph-plain": Variant("graph", "loops.plain", 1024),
    "recommender-plain": Variant("recommender", "loops.plain", 256),
    "recommender-momentum": Variant("recommender", "loops.momentum", 128),
    "experts-plain": Variant("experts", "loops.plain", 128),
    "diffusion-averaged": Variant("diffusion", "loops.averaged", 128),
    "audio-plain": Variant("audio", "loops.plain", 8),
    "contrastive-scheduled": Variant("contrastive", "loops.scheduled", 128),
    # Batches from a DataLoader.
    "mlp-in-memory": Variant("mlp", "loading.in_memory", 64),
    "tiny-in-memory": Variant("tiny", "loading.in_memory", 32, 1000),
    "resnet-workers": Variant("resnet", "loading.workers", 16),
    "unet-prefetch": Variant("unet", "loading.workers", 8, options=(("count", 1), ("prefetch_factor", 8))),
    "audio-workers": Variant("audio", "loading.workers", 8),
    "vit-stream": Variant("vit", "loading.stream", 16),
    "vae-stream-workers": Variant("vae", "loading.stream", 64, options=(("count", 2),)),
    "mlp-mapped": Variant("mlp", "loading.mapped", 64),
    "recommender-whole": Variant("recommender", "loading.whole", 128),
    "gru-weighted": Variant("gru", "loading.weighted", 16),
    "gpt-collated": Variant("gpt", "loading.collated", 8, given=64),
    # More than one network, or none that learns.
    "critics": Variant("vae", "special.critics", 64),
    "reinforce": Variant("tiny", "special.reinforce", 4, 100),
    "replayed": Variant("tiny", "special.replayed", 64, 1500),
    "clipped-policy": Variant("tiny", "special.clipped_policy", 64, 800),
    "sparse-table": Variant("tiny", "special.sparse", 64, 400),
    "resnet-infer": Variant("resnet", "loops.infer", 16),
    "mlp-serve": Variant("mlp", "loops.serve", 32, 400),
    # Frameworks.
    "lightning": Variant("mlp", "frameworks.lightning", 32, 320),
    "hugging-face": Variant("gpt", "frameworks.hugging_face", 8, 180, given=32),
    "hugging-face-accumulated": Variant(
        "gpt", "frameworks.hugging_face", 4, 120, options=(("gradient_accumulation_steps", 4),), given=32
    ),
    "accelerated": Variant("mlp", "frameworks.accelerated", 32),
    # Several ranks.
    "ranks-mlp": Variant("mlp", "ranks.data_parallel", 128, 180, 2),
    "ranks-gpt": Variant("gpt", "ranks.data_parallel", 8, 180, 2),
    "ranks-resnet": Variant("resnet", "ranks.data_parallel", 8, 150, 2),
    "ranks-sampled": Variant("mlp", "ranks.sampled", 32, 180, 2),
    "ranks-micro-steps": Variant("gpt", "ranks.micro_steps", 4, 120, 2),
    "ranks-saving": Variant("mlp", "ranks.saving_rank", 64, 180, 2),
    "ranks-sharded": Variant("gpt", "ranks.sharded", 8, 150, 2),
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=VARIANTS)
    parser.add_argument("--steps", type=int)
    given = parser.parse_args()
    variant = VARIANTS[given.name]
    # Printing the table does not need torch.
    torch, networks = importlib.import_module("torch"), importlib.import_module("networks")
    module, function = variant.loop.split(".")
    loop = getattr(importlib.import_module(module), function)
    if variant.threads:
        torch.set_num_threads(variant.threads)
    torch.manual_seed(0)
    random.seed(0)
    make = getattr(networks, variant.task)
    task = make() if variant.given is None else make(variant.given)
    loop(task, given.steps or variant.steps, variant.size, **dict(variant.options))


if __name__ == "__main__":
    main()
