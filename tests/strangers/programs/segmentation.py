import common
import segmentation_models_pytorch as smp
import torch

common.begin()
model = smp.Unet("resnet18", encoder_weights=None, in_channels=1, classes=1)
loss_function = smp.losses.DiceLoss("binary")
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
images = torch.randn(8, 1, 32, 32)
masks = (images > 0).float()
for _ in range(2):
    model.train()
    for batch, mask in zip(images.split(2), masks.split(2)):
        optimizer.zero_grad()
        loss = loss_function(model(batch), mask)
        loss.backward()
        optimizer.step()
        common.said("loss", loss)
    model.eval()
    with torch.no_grad():
        counts = smp.metrics.get_stats(model(images).sigmoid(), masks.long(), mode="binary", threshold=0.5)
    common.said("validation", smp.metrics.iou_score(*counts, reduction="micro"))
common.weights(model)
