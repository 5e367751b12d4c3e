"""The device of the tests' inputs, which ``pytest --device`` chooses.

Tests create tensors on ``DEVICE`` and draw with :func:`seeded`, or with the fixtures of
``conftest.py``, which do the same.

``python -m tests.devices`` prints the accelerators that can be tested on this machine.
"""

import sys

import torch

from tests import simulated_accelerator

DEVICE = torch.device("cpu")
NAMES = ("cpu", simulated_accelerator.NAME, "cuda")


def why_not(name):
    """Return why this machine cannot test a device, or None."""
    if name == "cuda" and not torch.cuda.is_available():
        return "torch finds no CUDA device"
    if name == simulated_accelerator.NAME and not simulated_accelerator.is_available():
        return f"torch {torch.__version__} cannot simulate a device; 2.13 can"
    return None


def choose(name):
    """Set the device, before any test module imports it."""
    global DEVICE
    if name == simulated_accelerator.NAME:
        simulated_accelerator.install()
    DEVICE = torch.device(name, 0) if name != "cpu" else torch.device(name)


def seeded(seed=0):
    """Return a seeded generator on the device."""
    if DEVICE.type == simulated_accelerator.NAME:
        return simulated_accelerator.Generator().manual_seed(seed)
    return torch.Generator(DEVICE).manual_seed(seed)


if __name__ == "__main__":
    for accelerator in NAMES[1:]:
        if reason := why_not(accelerator):
            print(f"{accelerator} is not tested: {reason}", file=sys.stderr)
        else:
            print(accelerator)
