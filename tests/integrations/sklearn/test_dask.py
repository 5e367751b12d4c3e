"""Candidates evaluated by a Dask cluster: a scheduler and two worker processes."""

import subprocess
import sys
import time
from contextlib import ExitStack

import joblib
import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from botorch_dp import ApproxDP
from botorch_dp.integrations.sklearn import PrivateSearch, Real

distributed = pytest.importorskip("distributed")

pytestmark = pytest.mark.default_device


@pytest.fixture
def client(tmp_path):
    """A client of processes started by the commands of the docs."""
    file = tmp_path / "scheduler.json"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    commands = [
        ["scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard"],
        *[["worker", "--nthreads", "1", "--no-nanny", "--no-dashboard"]] * 2,
    ]
    with ExitStack() as running:
        for command in commands:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-m", f"distributed.cli.dask_{command[0]}"),
                    *(*command[1:], "--scheduler-file", str(file)),
                ],
                cwd=tmp_path,
                **quiet,
            )
            running.callback(process.wait)
            running.callback(process.terminate)
            while command[0] == "scheduler" and not file.exists():
                assert process.poll() is None
                time.sleep(0.05)
        client = running.enter_context(
            distributed.Client(scheduler_file=str(file), timeout=30)
        )
        client.wait_for_workers(2, timeout=60)
        yield client


def test_the_same_as_in_one_process(client):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 2))
    y = (X[:, 0] > 0).astype(int)
    search = PrivateSearch(
        LogisticRegression(),
        {"C": Real(1e-2, 1e2, log=True)},
        ApproxDP(1.0, 1e-5),
        method="stable",
        num_candidates=16,
        random_state=0,
    )
    data = {"X_val": X[200:], "y_val": y[200:]}
    here = search.fit(X[:200], y[:200], **data).best_params_
    with joblib.parallel_config(backend="dask"):
        there = search.fit(X[:200], y[:200], **data).best_params_
    assert there == here
    logs = client.run(lambda dask_worker: dask_worker.state.executed_count)
    assert all(count > 0 for count in logs.values())
    assert len(logs) == 2
