"""Task ``resnet``: a small ResNet on images, trained by SGD with momentum.

It normalizes by group, not by batch. Statistics of a batch would be of one rank's part of it, so the model would change
with the number of ranks; and DDP sends them by itself, uncompressed, which an emulated link would not slow.
"""

from torch import Tensor, nn


class Block(nn.Module):
    """A residual block of two convolutions (He et al. 2016), the activation first."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.GroupNorm(8, inside), nn.ReLU(), nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        )
        self.second = nn.Sequential(
            nn.GroupNorm(8, outside), nn.ReLU(), nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        )
        self.shortcut = nn.Conv2d(inside, outside, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.second(self.first(x)) + self.shortcut(x)
        return out


class ResNet(nn.Module):
    """Maps images, shape ``(n, channels, height, width)``, to scores of the classes, shape ``(n, classes)``.

    Args:
        width: Channels of the first of three stages; the second has twice and the third four times as many.
        blocks: Residual blocks in a stage; 1 makes a ResNet-8, 2 a ResNet-14.
        stride: Of the first convolution; 2 halves height and width before the first stage.
        channels: Of the images.
        classes: How many there are.
    """

    def __init__(
        self, width: int, blocks: int = 1, stride: int = 1, channels: int = 1, classes: int = 10
    ) -> None:
        super().__init__()
        stages = [(width, width, 1), (width, 2 * width, 2), (2 * width, 4 * width, 2)]
        self.body = nn.Sequential(
            nn.Conv2d(channels, width, 3, stride, 1, bias=False),
            *(
                Block(outside if again else inside, outside, 1 if again else step)
                for inside, outside, step in stages
                for again in range(blocks)
            ),
            nn.GroupNorm(8, 4 * width),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        self.scores = nn.Linear(4 * width, classes)

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.scores(self.body(images))
        return scores
