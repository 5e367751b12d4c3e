import json

import pytest
from gpytorch.kernels import MaternKernel, PolynomialKernel, RBFKernel, ScaleKernel

from botorch_dp.models import describe_kernel
from tests.devices import DEVICE

KERNELS = {
    "rbf": RBFKernel,
    "another length scale": lambda: scaled(RBFKernel(), lengthscale=0.3),
    "a scale": lambda: ScaleKernel(RBFKernel()),
    "another scale": lambda: scaled(ScaleKernel(RBFKernel()), outputscale=2.0),
    "some dimensions": lambda: RBFKernel(active_dims=[1]),
    "other dimensions": lambda: RBFKernel(active_dims=[0]),
    "one length scale each": lambda: RBFKernel(ard_num_dims=2),
    "matern": lambda: MaternKernel(nu=2.5),
    "rougher": lambda: MaternKernel(nu=1.5),
    "polynomial": lambda: PolynomialKernel(power=2),
    "a higher power": lambda: PolynomialKernel(power=3),
    "sum": lambda: RBFKernel() + MaternKernel(),
    "product": lambda: RBFKernel() * MaternKernel(),
}


def scaled(kernel, **values):
    for name, value in values.items():
        setattr(kernel, name, value)
    return kernel


def describe(name):
    with DEVICE:
        return describe_kernel(KERNELS[name]())


@pytest.mark.parametrize("name", KERNELS)
def test_plain_values_that_differ_between_kernels(name):
    description = describe(name)
    assert json.loads(json.dumps(description)) == description
    assert description == describe(name)
    assert all(description != describe(other) for other in KERNELS if other != name)


def test_parts_come_after_the_whole():
    assert [part["type"] for part in describe("a scale")] == [
        "ScaleKernel",
        "RBFKernel",
    ]
