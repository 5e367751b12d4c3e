"""The example on Ray: workers evaluate, and the choice is that of one process."""

import subprocess
import sys
from pathlib import Path

import pytest

from botorch_dp import ApproxDP
from examples.ray_on_one_machine.search import fit, search

ROOT = Path(__file__).parents[3]


def test_the_search_without_ray():
    found = fit(search(1))
    assert set(found.best_params_) == {"C"}
    assert found.certificate_.cap == ApproxDP(epsilon=1.0, delta=1e-6)


def test_on_ray():
    pytest.importorskip("ray", reason="the example needs ray")
    done = subprocess.run(
        [sys.executable, "-m", "examples.ray_on_one_machine.search", "--workers", "2"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]  # 1 if the two searches differ
    assert "2 worker processes" in done.stdout
    assert "Differential privacy certificate" in done.stdout
