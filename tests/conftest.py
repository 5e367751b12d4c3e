"""Shared fixtures, and three switches: ``--device``, ``--meta-device``, ``--quick``."""

from pathlib import Path

import hypothesis
import pytest
import torch

from tests import devices, simulated_accelerator

collect_ignore = ["mutants"]  # `make mutants` runs them

# Workers run side by side: more threads each would only wait for one another.
torch.set_num_threads(1)

# Examples on a busy machine take as long as they take.
hypothesis.settings.register_profile("suite", deadline=None)
hypothesis.settings.load_profile("suite")


def pytest_addoption(parser):
    parser.addoption(
        "--device",
        choices=devices.NAMES,
        default="cpu",
        help="the device of the tests' inputs; sim is a simulated accelerator. With "
        "sim and cuda, only the tests run that create their inputs on the device",
    )
    parser.addoption(
        "--meta-device",
        action="store_true",
        help="make meta the default device while all inputs are on the CPU, so that a "
        "tensor created without device= fails at once; tests marked default_device "
        "still run with the CPU as default device",
    )
    parser.addoption(
        "--quick",
        action="store_true",
        help="run each test function once, with its first parameters, and leave out "
        "the tests listed in tests/slow.txt",
    )


def pytest_configure(config):
    # Here and not in pyproject.toml, which would import the package before coverage.
    config.addinivalue_line(
        "filterwarnings", "error::botorch_dp.exceptions.BotorchDPWarning"
    )
    name = config.getoption("--device")
    if reason := devices.why_not(name):
        raise pytest.UsageError(f"--device {name}: {reason}")
    devices.choose(name)


def pytest_report_header():
    return f"device of the inputs: {devices.DEVICE}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    with simulated_accelerator.count() as counts:
        result = yield
    if counts.operations:
        item.user_properties.append(("used the simulated accelerator", True))
    return result


def pytest_terminal_summary(terminalreporter):
    parts = [f"device of the inputs: {devices.DEVICE}"]
    if devices.DEVICE.type == simulated_accelerator.NAME:
        passed = terminalreporter.stats.get("passed", [])
        used = sum(bool(report.user_properties) for report in passed)
        parts.append(f"{used} of {len(passed)} tests that passed computed on it")
    for name in devices.NAMES:
        if reason := devices.why_not(name):
            parts.append(f"{name} is not available: {reason}")
    terminalreporter.write_line("; ".join(parts))


def pytest_runtest_setup(item):
    name = devices.DEVICE.type
    if name != "cpu" and (mark := item.get_closest_marker("cpu_only")):
        pytest.skip(f"only for the CPU: {mark.args[0]}")
    if name != "cuda" and item.get_closest_marker("cuda"):
        pytest.skip("needs --device cuda")


def pytest_collection_modifyitems(config, items):
    if not config.getoption("--quick"):
        return
    lines = (Path(__file__).parent / "slow.txt").read_text().splitlines()
    seen, kept, removed = {line for line in lines if not line.startswith("#")}, [], []
    for item in items:
        file, _, name = item.nodeid.partition("::")
        function = name.partition("[")[0]
        first = function not in seen and (file, function) not in seen
        (kept if first else removed).append(item)
        seen.add((file, function))
    config.hook.pytest_deselected(items=removed)
    items[:] = kept


@pytest.fixture(autouse=True)
def _meta_default_device(request):
    if (
        not request.config.getoption("--meta-device")
        or "default_device" in request.keywords
    ):
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
    return {"dtype": request.param, "device": devices.DEVICE}


@pytest.fixture
def double():
    """The dtype and device of inputs where precision matters more than coverage."""
    return {"dtype": torch.float64, "device": devices.DEVICE}


@pytest.fixture
def generator():
    """A seeded generator on the device of the inputs."""
    return devices.seeded(2026)


@pytest.fixture
def accelerator():
    """The simulated accelerator, for tests that need this one."""
    if devices.DEVICE.type != simulated_accelerator.NAME:
        pytest.skip("needs --device sim")
    return simulated_accelerator
