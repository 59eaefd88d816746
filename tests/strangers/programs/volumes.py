import common
import torch
from ignite.engine import Events
from monai.data import CacheDataset, DataLoader
from monai.engines import SupervisedEvaluator, SupervisedTrainer
from monai.handlers import MeanDice, ValidationHandler, from_engine
from monai.inferers import SimpleInferer, SlidingWindowInferer
from monai.losses import DiceLoss
from monai.networks.nets import UNet
from monai.transforms import AsDiscreted, Compose, RandFlipd, ScaleIntensityd
from monai.utils import set_determinism

common.begin()
set_determinism(0)
images = torch.randn(8, 1, 16, 16)
samples = [{"image": image, "label": (image > 0).float()} for image in images]
transforms = Compose([ScaleIntensityd("image"), RandFlipd(("image", "label"), prob=0.5, spatial_axis=0)])
loader = DataLoader(CacheDataset(samples, transforms, progress=False), batch_size=2, shuffle=True)
model = UNet(spatial_dims=2, in_channels=1, out_channels=1, channels=(4, 8), strides=(2,), num_res_units=1)
evaluator = SupervisedEvaluator(
    device=torch.device("cpu"),
    val_data_loader=loader,
    network=model,
    inferer=SlidingWindowInferer(roi_size=(8, 8), sw_batch_size=4),
    postprocessing=AsDiscreted("pred", threshold=0.5),
    key_val_metric={"dice": MeanDice(output_transform=from_engine(("pred", "label")))},
)
trainer = SupervisedTrainer(
    device=torch.device("cpu"),
    max_epochs=2,
    train_data_loader=loader,
    network=model,
    optimizer=torch.optim.Adam(model.parameters(), lr=0.01),
    loss_function=DiceLoss(sigmoid=True),
    inferer=SimpleInferer(),
    train_handlers=[ValidationHandler(1, evaluator)],
)
trainer.add_event_handler(
    Events.ITERATION_COMPLETED, lambda engine: common.said("loss", engine.state.output[0]["loss"])
)
trainer.run()
common.said("dice", evaluator.state.metrics["dice"])
common.weights(model)
