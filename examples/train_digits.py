"""A small CNN trained on scikit-learn's handwritten digits.

    probe run --name digits -- python examples/train_digits.py

Ask of it, from another terminal:
    probe digits query "SELECT step, duration, data_time, forward_time, backward_time, optimizer_time FROM python.steps ORDER BY step DESC LIMIT 5"
    probe digits eval "print(epoch, accuracy, optimizer.param_groups[0]['lr'])"
"""

import argparse

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split


class Digits(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, padding=1), nn.BatchNorm2d(2 * width), nn.ReLU(), nn.MaxPool2d(2),
        )  # fmt: skip
        self.classifier = nn.Linear(2 * width * 16, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.features(images).flatten(1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(0)
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16
    dataset = TensorDataset(images, torch.tensor(data.target))
    train, test = random_split(dataset, [0.8, 0.2])
    train_loader = DataLoader(train, batch_size=args.batch_size, shuffle=True, num_workers=args.workers)
    test_loader = DataLoader(test, batch_size=256)
    model = Digits()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    accuracy = 0.0
    for epoch in range(args.epochs):
        model.train()
        for batch, labels in train_loader:
            loss = F.cross_entropy(model(batch), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            right = sum((model(batch).argmax(1) == labels).sum().item() for batch, labels in test_loader)
        accuracy = right / len(test)
        print(f"epoch {epoch}: loss {loss.item():.4f}, accuracy {accuracy:.3f}", flush=True)


if __name__ == "__main__":
    main()
