"""Shared fixtures, and the switch that finds tensors made on the wrong device."""

import hypothesis
import pytest
import torch

collect_ignore = ["mutants"]  # `make mutants` runs them

# Workers run side by side: more threads each would only wait for one another.
torch.set_num_threads(1)

# Examples on a busy machine take as long as they take.
hypothesis.settings.register_profile("suite", deadline=None)
hypothesis.settings.load_profile("suite")


def pytest_addoption(parser):
    parser.addoption(
        "--meta-device",
        action="store_true",
        help="make meta the default device while all inputs are on the CPU, so that a "
        "tensor created without device= fails at once",
    )


def pytest_configure(config):
    # Here and not in pyproject.toml, which would import the package before coverage.
    config.addinivalue_line(
        "filterwarnings", "error::botorch_dp.exceptions.BotorchDPWarning"
    )


def pytest_collection_modifyitems(config, items):
    if config.getoption("--meta-device"):
        kept = [item for item in items if "default_device" not in item.keywords]
        removed = [item for item in items if "default_device" in item.keywords]
        config.hook.pytest_deselected(items=removed)
        items[:] = kept


@pytest.fixture(autouse=True)
def _meta_default_device(request):
    if not request.config.getoption("--meta-device"):
        yield
        return
    torch.set_default_device("meta")
    try:
        yield
    finally:
        torch.set_default_device("cpu")


@pytest.fixture(params=[torch.float32, torch.float64], ids=["float32", "float64"])
def tkwargs(request):
    """The dtype and device of a test's inputs."""
    return {"dtype": request.param, "device": torch.device("cpu")}


@pytest.fixture
def double():
    """The dtype and device of inputs where precision matters more than coverage."""
    return {"dtype": torch.float64, "device": torch.device("cpu")}


@pytest.fixture
def generator():
    """A seeded generator, on the CPU whatever the default device."""
    return torch.Generator(device="cpu").manual_seed(2026)
