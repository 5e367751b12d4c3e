"""Torch's global generators, which optimizers leave as they found them."""

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def kept_generators() -> Iterator[None]:
    """Restore the states of torch's global generators afterwards.

    ``torch.manual_seed`` seeds the CPU and every accelerator, CUDA or another one, so
    all of them are restored.
    """
    kind = "cuda"
    if torch.accelerator.is_available():
        accelerator = torch.accelerator.current_accelerator()
        assert accelerator is not None
        kind = accelerator.type
    devices = range(torch.accelerator.device_count())
    with torch.random.fork_rng(devices=devices, device_type=kind):
        yield
