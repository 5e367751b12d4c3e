"""Inputs decide the device, and work on an accelerator does not wait for the host."""

import os

import numpy as np
import pytest
import torch

from benchmarks import _device_work as work
from botorch_dp import DPGIBO, GDP
from botorch_dp.privacy import SystemNoise
from tests.devices import DEVICE
from tests.simulated_accelerator import Counts

# What one step of DPGIBO may ask of an accelerator, whatever d, n and T. The transfers
# are the noise and the release.
MAX_OPERATIONS = 200
MAX_SYNCHRONIZATIONS = 3
MAX_TRANSFERS = 2


def test_the_switch_is_on_when_asked_for(request):
    expected = "meta" if request.config.getoption("--meta-device") else "cpu"
    assert torch.zeros(1).device.type == expected


def test_the_inputs_are_where_they_should_be(request, tkwargs, generator):
    expected = request.config.getoption("--device")
    assert torch.zeros(1, **tkwargs).device.type == expected
    assert generator.device.type == expected


@pytest.mark.cuda
def test_cuda_is_tested_on_a_gpu():
    assert DEVICE.type == "cuda"
    assert torch.cuda.is_available()


def test_it_catches_a_tensor_made_without_a_device(double):
    default = torch.get_default_device()
    value = torch.zeros(3, **double)
    torch.set_default_device("meta")
    try:
        with pytest.raises(RuntimeError, match=r"device|[Mm]eta"):
            (value + torch.arange(3)).tolist()
        assert SystemNoise().add_gaussian(value, 1.0).device == value.device
    finally:
        torch.set_default_device(default)


def test_a_run_is_the_same_on_every_device(monkeypatch):
    found = []
    for device in (torch.device("cpu"), DEVICE):
        monkeypatch.setattr(os, "urandom", np.random.default_rng(7).bytes)
        tkwargs = {"dtype": torch.float64, "device": device}
        bounds = torch.stack([torch.zeros(3, **tkwargs), torch.ones(3, **tkwargs)])
        records = torch.linspace(0, 5, 150, **tkwargs).sin().reshape(50, 1, 3)
        opt = DPGIBO(bounds, 50, GDP(1.0), 4, 1.0)
        opt.run(lambda X, r=records: (X - r).square().sum(dim=-1), progress=False)
        assert {step.x.device for step in opt.history} == {device}
        found.append(torch.stack([step.x.cpu() for step in opt.history]))
    assert torch.allclose(*found, atol=1e-6)


class TestCountsOfAStep:
    """Ask and tell, without the objective."""

    def counts(self, *, d=5, n=200, before=8):
        parts = work.dp_gibo(DEVICE, d=d, n=n, before=before)
        return sum(map(work.counts_of, parts), start=Counts())

    def test_they_do_not_grow(self, accelerator):
        expected = self.counts()
        assert self.counts(d=20) == expected
        assert self.counts(n=5000) == expected
        assert self.counts(before=16) == expected

    def test_they_are_few(self, accelerator):
        counts = self.counts()
        assert counts.operations <= MAX_OPERATIONS
        assert counts.synchronizations <= MAX_SYNCHRONIZATIONS
        assert counts.transfers <= MAX_TRANSFERS
