"""Names of earlier versions, which work for one release and warn."""

import functools
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")
_PACKAGE = "botorch_dp"
# Where modules were, and where they are now.
MOVED = {
    "federated": "integrations.flower",
    "federated.agent_store": "integrations.flower.agent_store",
    "federated.app_folder": "integrations.flower.app_folder",
    "federated.client_app": "integrations.flower.client_app",
    "federated.client_worker": "integrations.flower.client_worker",
    "federated.gateway": "integrations.flower.gateway",
    "federated.idle_connections": "integrations.flower.idle_connections",
    "federated.messages": "integrations.flower.messages",
    "federated.node_keys": "integrations.flower.node_keys",
    "federated.private_files": "integrations.flower.private_files",
    "federated.roll_call": "integrations.flower.roll_call",
    "federated.server_app": "integrations.flower.server_app",
    "federated.settings": "integrations.flower.settings",
    "federated.superlink": "integrations.flower.superlink",
    "federated.supernode": "integrations.flower.supernode",
    "federated.waiting": "integrations.flower.waiting",
    "models.compression": "models.surrogates.compressed",
    "models.dataset_kernel": "models.kernels.dataset_kernel",
    "models.describe": "models.kernels.describe",
    "models.fixed_surrogates": "models.surrogates.fixed",
    "models.gradient_surrogate": "models.surrogates.base",
    "models.kernel_autograd": "models.kernels.autograd",
    "models.kernel_closed_forms": "models.kernels.closed_forms",
    "models.kernel_gradients": "models.kernels.derivatives",
    "models.kernel_jets": "models.kernels.jets",
    "models.padded_dictionary": "models.surrogates.padded_dictionary",
    "models.radial": "models.kernels.radial",
    "models.stencil": "models.surrogates.stencil",
    "models.wasserstein": "models.surrogates.wasserstein",
    "optimizers.agent_randomness": "optimizers.fts.randomness",
    "optimizers.averaging": "optimizers.ldp.averaging",
    "optimizers.base": "optimizers.core.optimizer",
    "optimizers.charging": "optimizers.core.private_optimizer",
    "optimizers.checkpoint": "optimizers.core.checkpoint",
    "optimizers.coordinates": "optimizers.core.search_box",
    "optimizers.dp_fts": "optimizers.fts.simulation",
    "optimizers.dp_gibo": "optimizers.gibo.dp_gibo",
    "optimizers.federation": "optimizers.fts.federation",
    "optimizers.fts_accounting": "optimizers.fts.accounting",
    "optimizers.fts_agents": "optimizers.fts.agents",
    "optimizers.fts_domain": "optimizers.fts.regions",
    "optimizers.fts_server": "optimizers.fts.server",
    "optimizers.fts_weights": "optimizers.fts.weights",
    "optimizers.gibo_theory": "optimizers.gibo.bounds",
    "optimizers.gradient_descent": "optimizers.gibo.gradient_descent",
    "optimizers.information_gain": "optimizers.release.kusner.information_gain",
    "optimizers.ldp_bo": "optimizers.ldp.simulation",
    "optimizers.ldp_client": "optimizers.ldp.client",
    "optimizers.ldp_messages": "optimizers.ldp.messages",
    "optimizers.ldp_server": "optimizers.ldp.server",
    "optimizers.local_release": "optimizers.ldp.gradient_release",
    "optimizers.one_answer_each": "privacy.user_account",
    "optimizers.private_bo": "optimizers.release.private_bo",
    "optimizers.private_losses": "optimizers.core.private_values",
    "optimizers.published_release": "optimizers.release.kusner.releases",
    "optimizers.release_theory": "optimizers.release.kusner.sensitivity",
    "optimizers.release_utility": "optimizers.release.kusner.utility",
    "optimizers.releases": "optimizers.release.strategy",
    "optimizers.stable_release": "optimizers.release.stable",
    "optimizers.stable_scores": "optimizers.release.scores",
    "optimizers.step_schedules": "optimizers.ldp.step_sizes",
    "optimizers.stream_baselines": "optimizers.baselines.streams",
    "privacy.subsampling": "privacy.mechanisms.subsampled",
}


def warn_deprecated(old: str, new: str, *, stacklevel: int = 2) -> None:
    """Warn that a name goes away, and say what to use instead.

    Args:
        old: The deprecated name.
        new: The name that replaces it.
        stacklevel: 2 points at the function that calls this one.
    """
    warnings.warn(
        f"{old} is deprecated and will be removed in the next release: use {new}.",
        DeprecationWarning,
        stacklevel=stacklevel + 1,
    )


def renamed_names(module: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a module's ``__getattr__``, which finds renamed names and warns.

    Args:
        module: The module's ``__name__``.
        names: The new name of each old one.
    """

    def get(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warn_deprecated(f"{module}.{name}", f"{module}.{names[name]}")
        return getattr(sys.modules[module], names[name])

    return get


def renamed_argument(
    old: str, new: str
) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
    """Return a decorator that accepts a keyword argument by its old name and warns.

    Args:
        old: The deprecated name.
        new: The name that replaces it.
    """

    def decorate(function: Callable[_P, _T]) -> Callable[_P, _T]:
        @functools.wraps(function)
        def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
            if old in kwargs:
                if new in kwargs:
                    raise TypeError(f"{old} is the deprecated name of {new}: give one.")
                warn_deprecated(f"{old}=", f"{new}=")
                kwargs[new] = kwargs.pop(old)
            return function(*args, **kwargs)

        return call

    return decorate


def renamed_attribute(old: str, new: str) -> property:
    """Return a property that reads and writes an attribute by its old name and warns.

    Args:
        old: The deprecated name.
        new: The name that replaces it.
    """

    def get(self: object) -> Any:
        warn_deprecated(f"{type(self).__name__}.{old}", new)
        return getattr(self, new)

    def set_(self: object, value: Any) -> None:
        warn_deprecated(f"{type(self).__name__}.{old}", new)
        setattr(self, new, value)

    return property(get, set_, doc=f"The deprecated name of ``{new}``.")


class _MovedModules(Loader, MetaPathFinder):
    """Imports a module under its earlier name.

    The module found is a new one that hands out the names of the real one, which keeps
    its own ``__name__`` and ``__spec__``.
    """

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        package, _, name = fullname.partition(".")
        if package != _PACKAGE or name not in MOVED:
            return None
        return ModuleSpec(fullname, self, is_package=name == "federated")

    def exec_module(self, module: ModuleType) -> None:
        old = module.__name__
        new = f"{_PACKAGE}.{MOVED[old.partition('.')[2]]}"
        warn_deprecated(old, new, stacklevel=2)  # frames of importlib are skipped
        real = import_module(new)

        def get(name: str) -> Any:
            return getattr(real, name)

        vars(module).update(__doc__=real.__doc__, __getattr__=get)
        if hasattr(real, "__all__"):
            vars(module)["__all__"] = real.__all__


def install() -> None:
    """Let the modules of earlier versions be imported."""
    if not any(isinstance(finder, _MovedModules) for finder in sys.meta_path):
        sys.meta_path.append(_MovedModules())
