# SPDX-License-Identifier: MIT
"""Two models of the sizes that are trained: ResNet-50 (25.6 million parameters) and GPT-2 (124 million).

Shapes are those of He et al., "Deep Residual Learning for Image Recognition", table 1, and of Radford et al., "Language
Models are Unsupervised Multitask Learners", table 2. Inputs are small, so that a step takes a processor about a second.
"""

from __future__ import annotations

import torch
from torch import nn


class _Bottleneck(nn.Module):
    def __init__(self, inside: int, width: int, stride: int) -> None:
        super().__init__()
        outside = 4 * width
        self.body = nn.Sequential(
            *_convolution(inside, width, 1),
            nn.ReLU(),
            *_convolution(width, width, 3, stride),
            nn.ReLU(),
            *_convolution(width, outside, 1),
        )
        same = inside == outside and stride == 1
        self.shortcut = nn.Identity() if same else nn.Sequential(*_convolution(inside, outside, 1, stride))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


def _convolution(inside: int, outside: int, side: int, stride: int = 1) -> list[nn.Module]:
    return [nn.Conv2d(inside, outside, side, stride, side // 2, bias=False), nn.BatchNorm2d(outside)]


def resnet50() -> nn.Module:
    layers: list[nn.Module] = [*_convolution(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    inside = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for number in range(blocks):
            layers.append(_Bottleneck(inside, width, 2 if number == 0 and width > 64 else 1))
            inside = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, 1000))


class _Gpt2(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(50257, 768), nn.Embedding(1024, 768)
        layer = nn.TransformerEncoderLayer(768, 12, 3072, 0.0, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 12, nn.LayerNorm(768), enable_nested_tensor=False)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        length = words.size(1)
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        x = self.layers(self.words(words) + self.places(torch.arange(length)), mask=mask, is_causal=True)
        return nn.functional.linear(x, self.words.weight)


def gpt2() -> nn.Module:
    return _Gpt2()


def example(name: str) -> torch.Tensor:
    """An input of one rank."""
    return torch.randn(1, 3, 64, 64).expand(2, -1, -1, -1) if name == "ResNet-50" else torch.arange(16)[None]


MODELS = {"ResNet-50": resnet50, "GPT-2": gpt2}
