"""Names come on demand, and an agent does without what it does not need."""

import importlib
import pkgutil
import subprocess
import sys

import pytest

from botorch_dp import Ledger
from botorch_dp._imports import import_extra
from botorch_dp.exceptions import MissingExtraError
from botorch_dp.plots import plot_ledger
from botorch_dp.privacy import SecureNoise


@pytest.mark.parametrize(
    "package",
    [
        "botorch_dp",
        "botorch_dp.integrations.flower",
        "botorch_dp.integrations.opacus",
        "botorch_dp.integrations.optuna",
        "botorch_dp.integrations.sklearn",
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


@pytest.mark.parametrize(
    ("old", "new"), [("Query", "LDPQuery"), ("Answer", "LDPAnswer")]
)
def test_a_renamed_name_works_and_warns(old, new):
    module = importlib.import_module("botorch_dp.optimizers")
    match = f"botorch_dp.optimizers.{old} is deprecated .*optimizers.{new}"
    for _ in range(2):  # not only the first time
        with pytest.warns(DeprecationWarning, match=match) as caught:
            assert getattr(module, old) is getattr(module, new)
        assert caught[0].filename == __file__
    assert old not in module.__all__


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
print(botorch_dp.privacy.GDP(1.0), botorch_dp.models.fourier.__name__)
print("DPGIBO" in dir(botorch_dp))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["GDP(mu=1)", "botorch_dp.models.fourier", "True"]


def test_an_agent_imports_torch_and_numpy_only():
    script = """
import sys
import botorch_dp.optimizers.fts.federation
heavy = ("botorch", "gpytorch", "opacus", "dp_accounting", "scipy", "sklearn", "flwr")
print([name for name in heavy if name in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


# What the extras bring, and what only tests use.
OPTIONAL = (
    "dask",
    "distributed",
    "flwr",
    "joblib",
    "jupyterlab",
    "matplotlib",
    "opendp",
    "optuna",
    "pandas",
    "sklearn",
    "sphinx",
)


def loaded_by(statement):
    """Return the optional modules that a new interpreter loads for a statement."""
    script = (
        f"import sys\n{statement}\nprint(*(n for n in {OPTIONAL} if n in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return done.stdout.split()


def test_the_core_needs_no_optional_dependency():
    names = "[getattr(botorch_dp, name) for name in botorch_dp.__all__]"
    rooms = "import botorch_dp, botorch_dp.integrations, botorch_dp.plots"
    assert loaded_by(f"{rooms}; {names}") == []


def test_what_is_loaded_is_seen():
    assert loaded_by("import pandas") == ["pandas"]


def test_importing_the_package_alone_imports_nothing_heavy():
    script = """
import sys
import botorch
before = set(sys.modules)
import botorch_dp
print(*{name.partition(".")[0] for name in set(sys.modules) - before})
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["botorch_dp"]


def test_an_extra_is_imported():
    assert import_extra("json", extra="none", purpose="this") is sys.modules["json"]


@pytest.mark.parametrize(
    ("module", "call", "extra"),
    [
        ("opendp.prelude", SecureNoise, "secure"),
        ("matplotlib.pyplot", lambda: plot_ledger(Ledger()), "plots"),
    ],
)
def test_a_missing_extra_says_what_to_install(monkeypatch, module, call, extra):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=rf"botorch-dp\[{extra}\]"):
        call()
