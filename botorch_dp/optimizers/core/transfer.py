"""Copies of several public tensors to a device, in one transfer."""

from collections.abc import Sequence

import torch
from torch import Tensor


def send(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Return tensors on the CPU as tensors on a device.

    Another device gets all of them in one copy, which costs as long as the copy of one.
    They travel as doubles, which float32 and whole numbers below 2^53 survive.

    Args:
        tensors: Floating-point or int64 tensors on the CPU.
        device: The device. If it is the CPU, the tensors are returned as they are.

    Example:
        >>> public = [torch.arange(3), torch.ones(2, 2)]
        >>> [part.dtype for part in send(public, torch.device("cpu"))]
        [torch.int64, torch.float32]
    """
    if device.type == "cpu":
        return list(tensors)
    packed = torch.cat([tensor.double().flatten() for tensor in tensors]).to(device)
    parts = packed.split([tensor.numel() for tensor in tensors])
    return [
        part.view(tensor.shape).to(tensor.dtype)
        for part, tensor in zip(parts, tensors, strict=True)
    ]
