"""Train models in threads, where processes would take longer to start than to train.

Models are trained on public records, so the time of the first fit may decide. Threads
pay off as far as an estimator releases the interpreter's lock; where it does not, they
take turns, and nothing is lost.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import joblib
import sklearn
from joblib.parallel import (
    LokyBackend,
    SequentialBackend,
    ThreadingBackend,
    get_active_backend,
)

from botorch_dp.integrations.sklearn.space import Params

# Processes take a second or two to start, and some hundredths of a second for each
# model, for the records that are sent to them.
_FAST = 0.2


def may_use_threads(n_jobs: int | None) -> bool:
    """Return whether several models are to be trained at a time, in any way we like.

    That is not so if the caller configured a backend of joblib, such as processes, Dask
    or Ray.
    """
    # joblib prefers threads only if nobody has configured anything else.
    backend, _ = get_active_backend(prefer="threads")
    return isinstance(backend, ThreadingBackend) and (
        joblib.effective_n_jobs(n_jobs) > 1
    )


def is_serial(n_jobs: int | None) -> bool:
    """Return whether joblib would run one task after another in this thread."""
    backend, _ = get_active_backend()
    # Other backends, such as Dask, may send even a single task elsewhere.
    is_known = type(backend) in (LokyBackend, SequentialBackend, ThreadingBackend)
    return is_known and joblib.effective_n_jobs(n_jobs) == 1


def trains_fast(seconds_per_fit: float | None) -> bool:
    """Return whether threads are the better choice for fits of this duration."""
    return seconds_per_fit is not None and seconds_per_fit < _FAST


def in_threads(fit: Callable[[Params], Any], candidates: Sequence[Params]) -> list[Any]:
    """Return one model for each candidate, each trained in a thread of its own."""
    config = sklearn.get_config()  # it belongs to a thread

    def fit_alike(params: Params) -> Any:
        with sklearn.config_context(**config):
            return fit(params)

    # Filters of warnings belong to the process, and threads restore them in any order.
    with warnings.catch_warnings():
        return joblib.Parallel(n_jobs=len(candidates), backend="threading")(
            joblib.delayed(fit_alike)(params) for params in candidates
        )
