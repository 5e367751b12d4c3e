"""Names come on demand, and an agent does without what it does not need."""

import importlib
import pkgutil
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "package",
    [
        "botorch_dp",
        "botorch_dp.federated",
        "botorch_dp.models",
        "botorch_dp.optimizers",
    ],
)
def test_every_name_is_there(package):
    module = importlib.import_module(package)
    for name in module.__all__:
        assert getattr(module, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        module.nothing  # noqa: B018


@pytest.mark.parametrize("package", ["botorch_dp.models", "botorch_dp.optimizers"])
def test_no_name_shares_its_name_with_a_module(package):
    """Importing the module would put it in the name's place."""
    module = importlib.import_module(package)
    modules = {info.name for info in pkgutil.iter_modules(module.__path__)}
    assert modules
    assert not modules & set(module.__all__)


def test_modules_and_names_are_listed():
    script = """
import botorch_dp
print(botorch_dp.privacy.GDP(1.0), botorch_dp.models.stencil.HALF_WIDTH)
print("DPGIBO" in dir(botorch_dp))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["GDP(mu=1)", "0.05", "True"]


def test_an_agent_imports_torch_and_numpy_only():
    script = """
import sys
import botorch_dp.optimizers.federation
heavy = ("botorch", "gpytorch", "opacus", "dp_accounting", "scipy", "sklearn", "flwr")
print([name for name in heavy if name in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
