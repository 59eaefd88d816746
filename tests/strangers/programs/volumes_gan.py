import common
import torch
from ignite.engine import Events
from monai.data import CacheDataset, DataLoader
from monai.engines import GanTrainer
from monai.networks.nets import Discriminator, Generator
from monai.utils import set_determinism
from torch import nn

common.begin()
set_determinism(0)
samples = [{"reals": image} for image in torch.rand(8, 1, 8, 8)]
loader = DataLoader(CacheDataset(samples, None, progress=False), batch_size=2)
generator = Generator(latent_shape=4, start_shape=(4, 2, 2), channels=[4, 1], strides=[2, 2])
critic = Discriminator(in_shape=(1, 8, 8), channels=(4, 8), strides=(2, 2), num_res_units=1)
score = nn.BCELoss()


def of_critic(fakes, reals):
    real, fake = critic(reals), critic(fakes.detach())
    return (score(real, torch.ones_like(real)) + score(fake, torch.zeros_like(fake))) / 2


def of_generator(fakes):
    verdict = critic(fakes)
    return score(verdict, torch.ones_like(verdict))


trainer = GanTrainer(
    device=torch.device("cpu"),
    max_epochs=2,
    train_data_loader=loader,
    g_network=generator,
    g_optimizer=torch.optim.Adam(generator.parameters(), lr=0.01),
    g_loss_function=of_generator,
    d_network=critic,
    d_optimizer=torch.optim.Adam(critic.parameters(), lr=0.01),
    d_loss_function=of_critic,
    latent_shape=4,
    decollate=False,
)


@trainer.on(Events.ITERATION_COMPLETED)
def say(engine):
    for name in ("g_loss", "d_loss"):
        common.said(name, engine.state.output[name])


trainer.run()
common.weights(generator, critic)
