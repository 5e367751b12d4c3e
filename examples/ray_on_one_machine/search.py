"""Search on Ray: ``python -m examples.ray_on_one_machine.search --workers 3``.

Needs ``pip install ray`` beside ``botorch-dp[sklearn]``. The records are made up. The
search runs twice with the same seed, on Ray and in this process, and must choose the
same parameters. This process charges the ledger and draws the noise; workers do not.
"""

import argparse
import os

import joblib
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression

from botorch_dp import ApproxDP
from botorch_dp.integrations.sklearn import PrivateSearch, Real


def main() -> None:
    """Run the search on local workers and in this process, and compare."""
    parser = argparse.ArgumentParser(description="A private search on Ray.")
    parser.add_argument("--workers", type=int, default=2)
    workers = parser.parse_args().workers

    import ray
    from ray.util.joblib import register_ray

    # Workers see the records: no dashboard, and one thread in each.
    ray.init(
        num_cpus=workers,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"env_vars": {"OMP_NUM_THREADS": "1"}},
    )
    register_ray()
    on_ray = search(workers)
    with joblib.parallel_config(backend="ray"):
        fit(on_ray)
        used = joblib.Parallel(n_jobs=workers)(
            joblib.delayed(os.getpid)() for _ in range(10 * workers)
        )
    ray.shutdown()
    here = fit(search(1))
    print(f"on Ray {ray.__version__}: {on_ray.best_params_}")
    print(f"in this process: {here.best_params_}")
    print(f"{len(set(used) - {os.getpid()})} worker processes")
    print(on_ray.certificate_)
    if on_ray.best_params_ != here.best_params_:
        raise SystemExit("the two searches differ")


def search(n_jobs: int) -> PrivateSearch:
    """Return a search with seeded noise, to compare two of them."""
    return PrivateSearch(
        LogisticRegression(),
        {"C": Real(1e-3, 1e3, log=True)},
        ApproxDP(epsilon=1.0, delta=1e-6),
        method="stable",
        n_jobs=n_jobs,
        random_state=0,
        verbose=False,
    )


def fit(private_search: PrivateSearch) -> PrivateSearch:
    """Fit a search to made-up records."""
    X, y = make_classification(4_000, random_state=0)
    return private_search.fit(X[:1_000], y[:1_000], X_val=X[1_000:], y_val=y[1_000:])


if __name__ == "__main__":
    main()
