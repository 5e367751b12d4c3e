"""State and checkpoints: resumed runs, crashes at any moment, ledgers that agree."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from botorch_dp import (
    DPGIBO,
    GDP,
    Ledger,
)
from botorch_dp.exceptions import OptimizerStateError
from botorch_dp.optimizers.core.checkpoint import read_checkpoint, write_checkpoint
from tests.optimizers.problems import DEVICE, Quadratics, make, unit_box


def steps(opt, problem, count):
    for _ in range(count):
        opt.tell(problem(opt.ask()))


class TestFile:
    def test_run_resumes(self, tmp_path):
        path = tmp_path / "run.pt"
        problem = Quadratics()
        whole = make(num_steps=5).run(problem, progress=False)
        calls = []

        def failing(X):
            calls.append(len(X))
            if len(calls) == 4:
                raise KeyboardInterrupt
            return problem(X)

        with pytest.raises(KeyboardInterrupt):
            make(num_steps=5).run(failing, progress=False, checkpoint=path)
        opt = make(num_steps=5)
        result = opt.run(problem, progress=False, checkpoint=path)
        assert torch.allclose(result.x, whole.x, atol=1e-9)
        assert len(opt.ledger) == 5
        assert opt.ledger.path == f"{path}.ledger"
        again = make(num_steps=5).run(problem, progress=False, checkpoint=path)
        assert torch.equal(again.x, result.x)  # nothing left to do, nothing charged
        assert len(Ledger(f"{path}.ledger")) == 5

    def test_is_written_whole_or_not_at_all(self, tmp_path, monkeypatch):
        path = tmp_path / "run.pt"
        write_checkpoint(path, {"step": 1})

        def fail(*args):
            raise OSError("disk full")

        monkeypatch.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="disk full"):
            write_checkpoint(path, {"step": 2})
        assert read_checkpoint(path, DEVICE) == {"step": 1}
        assert os.listdir(tmp_path) == ["run.pt"]

    def test_damaged(self, tmp_path):
        path = tmp_path / "run.pt"
        path.write_bytes(b"not a checkpoint")
        with pytest.raises(OptimizerStateError, match="cannot be read"):
            make().run(Quadratics(), progress=False, checkpoint=path)
        torch.save([1, 2], path)
        with pytest.raises(OptimizerStateError, match="holds no state"):
            read_checkpoint(path, DEVICE)

    def test_a_ledger_in_memory_would_be_lost(self, tmp_path):
        opt = make(ledger=Ledger())
        with pytest.raises(OptimizerStateError, match="outlives the process"):
            opt.run(Quadratics(), progress=False, checkpoint=tmp_path / "run.pt")

    def test_a_ledger_of_ones_own(self, tmp_path):
        ledger = Ledger(tmp_path / "mine", cap=GDP(2.0))
        opt = make(ledger=ledger)
        opt.run(Quadratics(), progress=False, checkpoint=tmp_path / "run.pt")
        assert len(ledger) == 5
        assert sorted(os.listdir(tmp_path))[0] == "mine"
        assert not (tmp_path / "run.pt.ledger").exists()


SCRIPT = """
import sys, torch
from botorch_dp import DPGIBO, GDP
path, log = sys.argv[1:]
bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
records = torch.linspace(0, 1, 100, dtype=torch.float64)[:, None]
opt = DPGIBO(bounds, 100, GDP(1.0), num_steps=60, clip_norm=1.0)
draw = opt._mechanism.noise_source.add_gaussian

def logged(value, std):
    noisy = draw(value, std)
    with open(log, "a") as file:  # unbuffered enough: closed after every line
        print("drawn", file=file)
    return noisy

opt._mechanism.noise_source.add_gaussian = logged
opt.run(
    lambda X: (X.sum(dim=-1) - records).square(), progress=False, checkpoint=path
)
print("done")
"""


@pytest.mark.default_device
def test_killed_at_any_moment(tmp_path):
    """Kill -9 a run again and again; in the end the ledger has every draw."""
    path, log = str(tmp_path / "run.pt"), str(tmp_path / "log")
    random.seed(0)
    kills = 0
    for _ in range(30):
        with subprocess.Popen(
            [sys.executable, "-c", SCRIPT, path, log], stdout=subprocess.PIPE, text=True
        ) as process:
            while not os.path.exists(log) and process.poll() is None:
                time.sleep(0.01)  # imports take most of the time
            before = os.path.getsize(log) if os.path.exists(log) else 0
            while process.poll() is None and kills < 2:
                if os.path.exists(log) and os.path.getsize(log) > before:
                    time.sleep(random.uniform(0.0, 0.05))
                    process.send_signal(signal.SIGKILL)
                    kills += 1
                    break
                time.sleep(0.002)
            output, _ = process.communicate()
        charged = len(Ledger(f"{path}.ledger"))
        drawn = len(Path(log).read_text().splitlines()) if os.path.exists(log) else 0
        assert charged >= drawn  # never less than it drew
        if os.path.exists(path):
            state = read_checkpoint(path, DEVICE)
            assert charged >= len(state["charges"]) >= len(state["history"])
        if "done" in (output or ""):
            break
    assert kills == 2
    assert "done" in output
    ledger = Ledger(f"{path}.ledger")
    assert len(ledger) == 60
    assert ledger.accountant().within(GDP(1.0))
    resumed = DPGIBO(
        unit_box(2), 100, GDP(1.0), num_steps=60, clip_norm=1.0, ledger=ledger
    )
    resumed.load_state_dict(read_checkpoint(path, DEVICE))
    assert resumed.done
    assert 58 <= len(resumed.history) <= 60
