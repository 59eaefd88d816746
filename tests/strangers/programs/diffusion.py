import pathlib
import tempfile

import common
import numpy
from denoising_diffusion_pytorch import GaussianDiffusion, Trainer, Unet
from denoising_diffusion_pytorch import denoising_diffusion_pytorch as module
from PIL import Image

common.begin()
module.cpu_count = lambda: 0  # Augmentation in workers would draw from their own generators.
diffusion = GaussianDiffusion(Unet(dim=8, dim_mults=(1, 2), flash_attn=False), image_size=8, timesteps=4)
with tempfile.TemporaryDirectory() as directory:
    (pathlib.Path(directory) / "images").mkdir()
    for number in range(100):
        pixels = numpy.random.randint(0, 255, (8, 8, 3), dtype="uint8")
        Image.fromarray(pixels).save(f"{directory}/images/{number:03}.png")
    trainer = Trainer(
        diffusion, f"{directory}/images", train_batch_size=8, gradient_accumulate_every=2, train_num_steps=5,
        save_and_sample_every=4, num_samples=1, calculate_fid=False, results_folder=f"{directory}/results",
    )  # fmt: skip
    trainer.train()
common.weights(diffusion)
