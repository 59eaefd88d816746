"""The library of strangers: training programs, or loops and models, that were not written for this project; one entry each.

What a package ships as a program is run as it is: unmodified.py has most of these. Where it ships a loop or a model, a driver in
programs/ gives that made-up data and prints every loss to its last digit. Numbers of steps follow from a program's own
arithmetic, which stands beside them.
"""

from __future__ import annotations

from program import TORCHRUN, VALIDATED, Program, driver, script
from unmodified import UNMODIFIED


def manner(name: str, what: str, **more) -> Program:
    """Lightning's demonstration Transformer, trained for six steps in a way that people train."""
    more.setdefault("module", "decoder")
    return Program(
        f"transformer, {what}", "lightning", "pytorch/demos/transformer.py", "Apache-2.0", driver("manners", name),
        **{"steps": 6, **more},
    )  # fmt: skip


PROGRAMS = [
    # 8 steps are told; eval every 4.
    Program(
        "Hugging Face Trainer",
        "transformers",
        "trainer.py, models/gpt2",
        "Apache-2.0",
        driver("hf_trainer"),
        8,
        "transformer.h.0.attn.c_attn",
        stages=VALIDATED,
        always=True,
    ),
    # 2 epochs of 4 batches.
    Program(
        "Lightning BoringModel",
        "lightning",
        "pytorch/demos/boring_classes.py",
        "Apache-2.0",
        driver("lightning_boring", "BoringModel"),
        8,
        "layer",
        stages=VALIDATED,
        always=True,
    ),
    Program(
        "Lightning, optimized by hand",
        "lightning",
        "pytorch/demos/boring_classes.py",
        "Apache-2.0",
        driver("lightning_boring", "ManualOptimBoringModel"),
        8,
        "layer",
        stages=VALIDATED,
    ),
    Program(
        "Fabric in bfloat16",
        "lightning",
        "fabric, pytorch/demos/transformer.py",
        "Apache-2.0",
        driver("fabric_transformer"),
        8,
        None,
    ),
    # These scripts choose what they train, and compare their own weights.
    Program(
        "accelerate's test_sync",
        "accelerate",
        "test_utils/scripts/test_sync.py, unmodified",
        "Apache-2.0",
        script("test_sync"),
        1,
        "RegressionModel",
        at_least=True,
        always=True,
        environment=(("ACCELERATE_USE_CPU", "true"),),
    ),
    Program(
        "accelerate's test_script",
        "accelerate",
        "test_utils/scripts/test_script.py, unmodified",
        "Apache-2.0",
        script("test_script"),
        1,
        "RegressionModel",
        at_least=True,
        environment=(("ACCELERATE_USE_CPU", "true"),),
    ),
    manner("accumulate", "three batches a step", always=True),
    manner("gan", "a GAN with two optimizers", module="0", always=True),
    manner("lazily", "modules that forward adds to a ModuleDict", module="experts.of0", always=True),
    manner("autocast", "autocast"),
    manner("swa", "SWA and EMA", stages=VALIDATED),
    manner("lbfgs", "LBFGS with a closure"),
    manner(
        "functional",
        "torch.func.grad",
        steps=12,
        at_least=True,
        kind="backward",
        stages=("backward", "forward"),
        lacks="of 24 passes the first 8 have no step: until then it is not known that no optimizer of torch will step",
    ),
    manner("checkpointing", "activation checkpointing", stages=("backward", "forward", "recompute", "step")),
    manner("data_parallel", "DataParallel"),
    manner(
        "compiled",
        "torch.compile (aot_eager)",
        module="OptimizedModule",
        lacks="modules within a compiled region have no rows of their own",
    ),
    manner(
        "scripted",
        "torch.jit.script",
        module="RecursiveScriptModule",
        lacks="modules within a scripted one run in C++ and have no rows of their own",
    ),
    manner("sparse", "sparse embeddings under SparseAdam, beside Adam"),
    manner("hooks", "hooks of the program's own"),
    manner("subclass", "a subclass of Tensor", module="Linear"),
    manner("profiler", "under torch.profiler"),
    manner("traced", "under sys.settrace"),
    manner("fork", "a fork between steps that calls the model"),
    manner("leave", "os._exit at the end", status=3),
    manner("raises", "an exception at the end", status=1),
    manner("interrupted", "Ctrl-C, after which it saves and leaves", status=5),
    # 5 batches: two steps of 2, and one of what is left.
    manner("left_over", "an epoch whose last step has fewer batches", steps=3),
    manner("asynchronous", "in a task of asyncio that waits within each step"),
    manner("hook_raises", "hooks that raise in two of eight forward passes"),
    manner("waits", "that waits for all its threads and children"),
    Program(
        "quantization-aware training",
        "torch",
        "testing/_internal/common_quantization.py: test_only_train_fn",
        "BSD-3-Clause",
        driver("quantized"),
        40,
        "fc1",
    ),  # 10 passes over 4 batches
    *(
        Program(
            f"torch's test Transformer, {what}",
            "torch",
            "testing/_internal/distributed/_tensor/common_dtensor.py",
            "BSD-3-Clause",
            (*TORCHRUN, "tests/strangers/programs/ranks.py", name),
            5,
            module,
            agents=2,
        )
        for name, what, module in (
            ("ddp", "DDP", "layers.0.feed_forward.w1"),
            ("fsdp2", "FSDP2", "layers.0.feed_forward.w1"),
            ("tensor", "tensor parallel", "layers.0.feed_forward.w1"),
        )
    ),
    Program(
        "torch's test Transformer, mp.spawn",
        "torch",
        "testing/_internal/distributed/_tensor/common_dtensor.py",
        "BSD-3-Clause",
        driver("ranks", "spawn"),
        5,
        "layers.0.feed_forward.w1",
        agents=2,
    ),
    Program(
        "torch's pipelining",
        "torch",
        "distributed/pipelining: ScheduleGPipe",
        "BSD-3-Clause",
        (*TORCHRUN, "tests/strangers/programs/ranks.py", "pipeline"),
        5,
        "0",
        agents=2,
    ),
    # 48 of 60 samples in batches of 12, 3 epochs.
    Program(
        "skorch",
        "skorch",
        "net.py: NeuralNetClassifier.fit",
        "BSD-3-Clause",
        driver("skorch_fit"),
        12,
        "0",
        stages=VALIDATED,
    ),
    Program(
        "Ignite",
        "pytorch-ignite",
        "engine: create_supervised_trainer",
        "BSD-3-Clause",
        driver("ignite_engine"),
        8,
        "1",
        stages=VALIDATED,
    ),
    # 2 rollouts, 2 epochs of 2 batches each.
    Program("PPO", "stable-baselines3", "ppo/ppo.py", "MIT", driver("stable_baselines", "PPO"), 8, None),
    # Every 4th of 64 steps in CartPole, after 16.
    Program(
        "DQN", "stable-baselines3", "dqn/dqn.py", "MIT", driver("stable_baselines", "DQN"), 12, None, stages=VALIDATED
    ),
    Program(
        "TabNet", "pytorch-tabnet", "tab_model.py: fit", "MIT", driver("tabnet_fit"), 8, "embedder", stages=VALIDATED
    ),
    Program(
        "Poutyne", "poutyne", "framework/model.py: fit", "LGPL-3.0", driver("poutyne_fit"), 8, "1", stages=VALIDATED
    ),
    Program(
        "pytorch-accelerated",
        "pytorch-accelerated",
        "trainer.py",
        "Apache-2.0",
        driver("accelerated_fit"),
        8,
        "1",
        stages=VALIDATED,
    ),
    Program(
        "metric learning",
        "pytorch-metric-learning",
        "trainers/metric_loss_only.py",
        "MIT",
        driver("metric_learning"),
        8,
        "1",
    ),
    Program(
        "diffusion",
        "denoising-diffusion-pytorch",
        "Trainer",
        "MIT",
        driver("diffusion"),
        5,
        "model.init_conv",
        stages=VALIDATED,
    ),
    Program("variational inference", "pyro-ppl", "infer/svi.py", "Apache-2.0", driver("pyro_svi"), 8, "linear"),
    Program(
        "Gaussian process", "gpytorch", "models/exact_gp.py", "MIT", driver("gaussian_process"), 8, "model.covar_module"
    ),
    Program(
        "graph network",
        "torch-geometric",
        "nn/models/basic_gnn.py, loader",
        "MIT",
        driver("graph_network"),
        8,
        "convs.0",
    ),
    Program(
        "neural ODE by adjoints",
        "torchdiffeq",
        "_impl/adjoint.py",
        "MIT",
        driver("neural_ode"),
        5,
        "base_func.base_func.net.0",
        stages=("backward", "forward", "recompute", "step"),
        lacks="what the adjoint calls within backward is stage recompute",
    ),
    Program(
        "neural SDE",
        "torchsde",
        "_core/sdeint.py",
        "Apache-2.0",
        driver("neural_sde"),
        5,
        "drift",  # It and `noise` are called outside of the module that they are in.
    ),
    Program("meta-learning", "higher", "patch.py, optim.py", "Apache-2.0", driver("meta_learning"), 5, None),
    *(
        Program(
            f"ViT under {what}",
            package,
            "the optimizer; the model is vit-pytorch's (MIT)",
            licence,
            driver("optimizers", name),
            6,
            "transformer.layers.0.0.to_qkv",
        )
        for name, what, package, licence in (
            ("lion", "Lion", "lion-pytorch", "MIT"),
            ("schedulefree", "schedule-free AdamW", "schedulefree", "Apache-2.0"),
            ("prodigy", "Prodigy", "prodigyopt", "MIT"),
            ("adabelief", "AdaBelief", "pytorch-optimizer", "Apache-2.0"),
        )
    ),
    Program(
        "decoder with EMA",
        "x-transformers",
        "AutoregressiveWrapper; EMA is ema-pytorch's",
        "MIT",
        driver("autoregressive"),
        6,
        "net.to_logits",
        stages=VALIDATED,
    ),
    Program("normalizing flow", "zuko", "flows: NSF", "MIT", driver("flow"), 6, None),
    Program("spiking network", "snntorch", "_neurons/leaky.py", "MIT", driver("spiking"), 6, "fc"),
    Program(
        "LoRA of Llama",
        "peft",
        "tuners/lora; the model is transformers'",
        "Apache-2.0",
        driver("lora"),
        6,
        "base_model.model.model.layers.0.self_attn.q_proj.lora_A.default",
    ),
    # Batches of 16 on average of 128 samples.
    Program(
        "private training",
        "opacus",
        "examples/mnist.py, unmodified",
        "Apache-2.0",
        driver("opacus_mnist"),
        8,
        "_module.conv1",  # Opacus puts the model into a module of its own.
        stages=VALIDATED,
    ),
    Program(
        "SimSiam",
        "lightly",
        "loss, models/modules; network, optimizer and EMA are timm's",
        "MIT",
        driver("simsiam"),
        4,
        "prediction",
    ),
    # 2 epochs of 4 batches, as in the next four.
    Program(
        "segmentation",
        "segmentation-models-pytorch",
        "Unet, losses, metrics",
        "MIT",
        driver("segmentation"),
        8,
        "segmentation_head",
        stages=VALIDATED,
    ),
    Program(
        "medical images",
        "monai",
        "engines: SupervisedTrainer, SupervisedEvaluator",
        "Apache-2.0",
        driver("volumes"),
        8,
        "model.0.conv.unit0.conv",
        stages=VALIDATED,
    ),
    Program(
        "medical GAN", "monai", "engines: GanTrainer", "Apache-2.0", driver("volumes_gan"), 8, "conv.layer_0.0.conv"
    ),
    Program(
        "augmented ViT",
        "kornia",
        "models/vit.py, augmentation",
        "Apache-2.0",
        driver("augmented_vit"),
        8,
        "encoder.blocks.0.0.fn.1.qkv",
    ),
    Program(
        "sentence embeddings",
        "sentence-transformers",
        "fit_mixin.py: old_fit",
        "Apache-2.0",
        driver("sentences"),
        8,
        "model.0.emb_layer",
        stages=VALIDATED,
    ),
    # 2 levels of 3 iterations.
    Program(
        "image registration", "kornia", "geometry: ImageRegistrator", "Apache-2.0", driver("registration"), 6, "model"
    ),
    # 64 frames and a step after every 8; PPO 2 rollouts of 2 batches, each of them twice.
    *(
        Program(
            f"TorchRL's {what}",
            "torchrl",
            f"objectives/{name}.py, collectors",
            "MIT",
            driver("reinforcement", name),
            8,
            "module.0.module.0",
            lacks=lacks,
            environment=(("RL_LOGGING_LEVEL", "WARNING"),),  # What it logs goes to stdout, with the time.
        )
        for name, what, lacks in (
            ("dqn", "DQN", ""),
            ("ppo", "PPO", ""),
            (
                "sac",
                "SAC",
                "modules within the two critics, whose parameters are stacked and which are called as one under vmap, have the names of their classes",
            ),
        )
    ),
    # 2 epochs of 4 batches on each of two ranks. The process that forks them is no agent.
    *(
        Program(
            f"Lightning's {strategy}",
            "lightning",
            "pytorch/strategies/launchers/multiprocessing.py",
            "Apache-2.0",
            driver("forked", strategy),
            8,
            "layer",
            stages=VALIDATED,
            agents=2,
        )
        for strategy in ("ddp_fork", "ddp_notebook")
    ),
    Program(
        "accelerate's notebook_launcher",
        "accelerate",
        "launchers.py: notebook_launcher",
        "Apache-2.0",
        driver("forked", "accelerate"),
        8,
        "1",
        stages=VALIDATED,
        agents=2,
    ),
    *UNMODIFIED,
]
