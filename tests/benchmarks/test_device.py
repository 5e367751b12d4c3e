"""The benchmark of devices: its work runs, and it says what is missing."""

import pytest
import torch

from benchmarks import device
from tests.devices import DEVICE

SMALL = ("DPGIBO, step, d = 5", "PrivateBO, release, 1,000", "GradientInformation")

pytestmark = pytest.mark.default_device  # kernels make tensors


def test_without_a_gpu_it_says_so(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="no CUDA device"):
        device.compare_with_cuda()


@pytest.mark.parametrize("name", SMALL)
def test_times_are_of_the_work_alone(name):
    make = next(made for key, made in device.TIMED.items() if key.startswith(name))
    assert device.timed(make, "cpu", repeats=1) > 0


def test_counts(accelerator):
    work = device.OTHERS["PrivateBO, release, 1,000 candidates"]
    row = device.counted(work(DEVICE))
    assert row["operations"] >= row["of these, kernels"] > 0
    assert row["to the device"] > 0
