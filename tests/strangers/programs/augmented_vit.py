import common
import torch
from kornia import augmentation
from kornia.models.vit import VisionTransformer
from torch import nn

common.begin()
augment = augmentation.AugmentationSequential(
    augmentation.RandomHorizontalFlip(p=0.5),
    augmentation.RandomAffine(degrees=10.0, p=0.5),
    augmentation.ColorJiggle(0.1, 0.1, 0.1, 0.1, p=0.5),
    data_keys=["input"],
)
encoder = VisionTransformer(image_size=16, patch_size=4, embed_dim=16, num_heads=2, depth=2)
head = nn.Linear(16, 4)
optimizer = torch.optim.AdamW([*encoder.parameters(), *head.parameters()], lr=0.01)
images, classes = torch.rand(16, 3, 16, 16), torch.arange(16) % 4
for _ in range(2):
    for batch, target in zip(images.split(4), classes.split(4)):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(head(encoder(augment(batch))[:, 0]), target)
        loss.backward()
        optimizer.step()
        common.said("loss", loss)
common.weights(encoder, head)
