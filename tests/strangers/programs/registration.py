import common
import torch
from kornia.geometry import ImageRegistrator

common.begin()
source = torch.rand(1, 1, 16, 16)
registrator = ImageRegistrator("similarity", num_iterations=3, pyramid_levels=2, tolerance=0.0)
homography = registrator.register(source, source.roll(1, -1), verbose=True)
print(homography.flatten().tolist())
common.weights(registrator)
