"""Training programs that run as their authors wrote them: scripts of packages, and of their source distributions.

What they need beside themselves a driver gives them: seeds, a directory to work in, made-up data, a tiny model. They have
arguments that let them end soon.
"""

from __future__ import annotations

from program import VALIDATED, Program, as_written, driver

FAKE = ("--dataset", "fake", "--dataroot", ".", "--output-dir", "out", "--g-filters", "8", "--d-filters", "8")
SMALL = ("--epochs", "1", "--batch-size", "2")
GAN = "a step ends with the discriminator's optimizer, so the generator's last update is in no row of python.steps"

UNMODIFIED = [
    # 300 steps on one batch of eight shapes.
    Program(
        "equivariant network",
        "e3nn",
        "examples/tetris.py, unmodified",
        "MIT",
        as_written("e3nn/examples/tetris.py"),
        300,
        "mp.layers.0.first",
        sources=True,
    ),
    # 128 images in batches of 16.
    Program(
        "Ignite's mnist.py",
        "pytorch-ignite",
        "examples/mnist/mnist.py, unmodified",
        "BSD-3-Clause",
        as_written(
            "pytorch-ignite/examples/mnist/mnist.py", "--epochs", "1", "--batch_size", "16", "--log_interval", "1"
        ),
        8,
        "fc1",
        stages=VALIDATED,
        sources=True,
        times=r"took [\d.]+ seconds",
    ),
    # 15 epochs of 2 batches.
    Program(
        "torch-optimizer's mnist.py",
        "torch-optimizer",
        "examples/mnist.py, unmodified",
        "Apache-2.0",
        as_written("torch-optimizer/examples/mnist.py"),
        30,
        "conv1",
        stages=VALIDATED,
        sources=True,
    ),
    # 11 of 128 random images are of the digit that it learns, in batches of 2; generator and discriminator step in turn.
    Program(
        "opacus' DCGAN",
        "opacus",
        "examples/dcgan.py, unmodified",
        "Apache-2.0",
        as_written(
            "opacus/examples/dcgan.py",
            *SMALL,
            "--data-root",
            "data",
            "--device",
            "cpu",
            "--workers",
            "0",
            "--ngf",
            "8",
            "--ndf",
            "8",
            "--disable-dp",
            "--outf",
            ".",
        ),
        6,
        "main.0",
        sources=True,
        environment=(("TELL", "*.pth"),),
        lacks=GAN,
    ),
    # 256 images in batches of 2; it plots what it logs after every 100th.
    Program(
        "Ignite's DCGAN",
        "pytorch-ignite",
        "examples/gan/dcgan.py, unmodified",
        "BSD-3-Clause",
        as_written("pytorch-ignite/examples/gan/dcgan.py", *SMALL, *FAKE, "--workers", "0"),
        128,
        "net.0",
        sources=True,
        times=r"Time per batch: [\d.]+",
        environment=(("TELL", "out/*.p*t*"),),
        lacks=GAN,
    ),
    # A step after each episode.
    *(
        Program(
            f"Ignite's {what}",
            "pytorch-ignite",
            f"examples/reinforcement_learning/{name}.py, unmodified",
            "BSD-3-Clause",
            as_written(
                f"pytorch-ignite/examples/reinforcement_learning/{name}.py",
                "--max-episodes",
                "8",
                "--log-interval",
                "1",
            ),
            8,
            "affine1",
            sources=True,
        )
        for name, what in (("reinforce", "REINFORCE"), ("actor_critic", "actor-critic"))
    ),
    # 10,000 steps of the inner problem, and one of the outer after each 100.
    Program(
        "bilevel optimization",
        "betty-ml",
        "examples/logistic_regression_hpo/logistic_regression.py, unmodified",
        "Apache-2.0",
        as_written("betty-ml/examples/logistic_regression_hpo/logistic_regression.py"),
        100,
        None,
        sources=True,
        times=r"\[\d{4}-[-\d: ]+\]|initialization: [\d.]+",
    ),
    # 100 episodes of 500 moments; it draws its losses.
    Program(
        "learning by correlations of spikes",
        "norse",
        "task/correlation_experiment.py, unmodified",
        "LGPL-3.0",
        as_written("norse.task.correlation_experiment"),
        100,
        None,
        environment=(("MPLBACKEND", "Agg"),),
    ),
    # 2 epochs of 7 batches.
    Program(
        "knowledge graph",
        "pykeen",
        "cli.py: train, unmodified; the data are its own",
        "MIT",
        driver("pykeen_train"),
        14,
        None,
        stages=VALIDATED,
    ),
    # 2 rollouts, 2 epochs of 2 batches each.
    Program(
        "RL Zoo's PPO",
        "rl-zoo3",
        "train.py, unmodified",
        "MIT",
        driver("zoo_train"),
        8,
        None,
        times=r"(fps|time_elapsed) +\| +\d+ +",
    ),
    *(
        Program(
            f"trl's {what}",
            "trl",
            f"scripts/{name}.py, unmodified; the model is transformers'",
            "Apache-2.0",
            driver("trl_scripts", name),
            8,
            "model.layers.0.self_attn.q_proj",
            stages=(*VALIDATED, "recompute"),
            times=r"'\w+_(runtime|per_second)': '[^']+'",
            environment=(("HF_HUB_OFFLINE", "1"),),
        )
        for name, what in (("sft", "fine-tuning"), ("dpo", "DPO"), ("reward", "reward model"))
    ),
]
