"""State and checkpoints: resumed runs, crashes at any moment, ledgers that agree."""

import copy
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from gpytorch.kernels import MaternKernel

from botorch_dp import (
    DPGIBO,
    GDP,
    GIBO,
    GPUCB,
    ApproxDP,
    Ledger,
    NoisyGradientDescent,
    RandomSearch,
)
from botorch_dp.exceptions import BudgetExceededError, OptimizerStateError
from botorch_dp.optimizers.core.checkpoint import read_checkpoint, write_checkpoint
from botorch_dp.privacy import GaussianEvent, PureEvent, ZCDPEvent
from tests.optimizers.gibo.test_dp_gibo_privacy import assert_equal
from tests.optimizers.problems import CPU, Quadratics, make, seeded, unit_box


def steps(opt, problem, count):
    for _ in range(count):
        opt.tell(problem(opt.ask()))


class TestState:
    def test_goes_on_as_if_nothing_had_happened(self):
        problem = Quadratics()
        whole = make(num_steps=6)
        steps(whole, problem, 6)
        first = make(num_steps=6)
        steps(first, problem, 3)
        second = make(num_steps=6)
        second.load_state_dict(first.state_dict())
        assert len(second.ask()) == 12 + 4  # the window's losses were not saved
        steps(second, problem, 3)
        assert second.done
        assert torch.allclose(second.x, whole.x, atol=1e-9)
        assert len(second.history) == 6

    def test_a_new_ledger_is_charged_for_what_was_spent(self):
        first = make(num_steps=4)
        steps(first, Quadratics(), 3)
        second = make(num_steps=4)
        second.load_state_dict(first.state_dict())
        spent = second.ledger.accountant().to_gdp().mu
        assert abs(spent - 0.75**0.5) < 1e-9
        steps(second, Quadratics(), 1)
        assert second.done
        assert abs(second.certificate().guarantee.mu - 1.0) < 1e-9

    def test_the_same_ledger_is_not_charged_twice(self, tmp_path):
        ledger = Ledger(tmp_path / "ledger", cap=GDP(1.0))
        first = make(num_steps=4, ledger=ledger)
        steps(first, Quadratics(), 3)
        second = make(num_steps=4, ledger=ledger)
        second.load_state_dict(first.state_dict())
        assert len(ledger) == 3

    def test_a_charge_that_the_state_lacks_is_a_step_paid_for(self, tmp_path):
        # As after a crash between the charge and the checkpoint.
        ledger = Ledger(tmp_path / "ledger", cap=GDP(1.0))
        first = make(num_steps=4, ledger=ledger)
        steps(first, Quadratics(), 2)
        state = first.state_dict()
        steps(first, Quadratics(), 1)
        second = make(num_steps=4, ledger=ledger)
        second.load_state_dict(state)
        steps(second, Quadratics(), 1)
        assert second.done
        assert len(second.history) == 3
        assert len(ledger) == 4

    def test_a_full_ledger_refuses_the_state(self):
        # And nothing of it is taken over: what was released is not paid for here.
        first = make(num_steps=4)
        steps(first, Quadratics(), 3)
        second = make(num_steps=4, ledger=Ledger(cap=GDP(0.6)))
        before = second.state_dict()
        with pytest.raises(BudgetExceededError):
            second.load_state_dict(first.state_dict())
        assert_equal(second.state_dict(), before)
        assert second.history == ()
        assert len(second.ledger) == 0  # not even the one that would fit

    @pytest.mark.parametrize(
        "damage",
        [
            lambda state: state.pop("settings"),
            lambda state: state.pop("charges"),
            lambda state: state.update(charges=[]),
            lambda state: state["charges"][0].update(count=0),
            lambda state: state["charges"][0].update(event={"type": "Nothing"}),
            lambda state: state.update(runs=[]),
            lambda state: state.update(update={}),
            lambda state: state.update(points=torch.zeros(3, 7, device=CPU)),
            lambda state: state.update(history=[{}]),
        ],
    )
    def test_a_damaged_state_changes_nothing(self, damage):
        first = make(num_steps=4)
        steps(first, Quadratics(), 3)
        state = first.state_dict()
        damage(state)
        second = make(num_steps=4)
        before = second.state_dict()
        with pytest.raises(OptimizerStateError):
            second.load_state_dict(state)
        assert_equal(second.state_dict(), before)
        assert len(second.ledger) == 0

    @pytest.mark.parametrize("cls", [DPGIBO, NoisyGradientDescent])
    @pytest.mark.parametrize(
        ("damage", "match"),
        [
            # Loaded, it would certify GDP(1.7e-9) for three steps of mu = 0.5.
            ({"event": GaussianEvent(1e9).to_dict()}, "not in the plan"),
            ({"event": GaussianEvent(2.0 * (1 + 1e-6)).to_dict()}, "not in the plan"),
            ({"event": ZCDPEvent(0.125).to_dict()}, "not in the plan"),
            ({"event": PureEvent(1e-9).to_dict()}, "not in the plan"),
            ({"adjacency": "zero_out"}, "not in the plan"),
            ({"count": 5}, "not in the plan"),
            ({"noise": "secure"}, "secure noise"),
            ({"unit": "agent"}, "every agent"),
            ({"run": "another"}, "another run"),
        ],
    )
    def test_charges_that_are_not_of_the_run(self, cls, damage, match):
        first, problem = make(num_steps=4, cls=cls), Quadratics()
        for _ in range(3):
            X = first.ask()
            first.tell(problem.gradients(X[0]) if len(X) == 1 else problem(X))
        for which in ([0], [0, 1, 2]):
            state = first.state_dict()
            for index in which:
                state["charges"][index].update(damage)
            second = make(num_steps=4, cls=cls)
            with pytest.raises(OptimizerStateError, match=match):
                second.load_state_dict(state)
            assert len(second.ledger) == 0
            assert second.history == ()

    def test_charges_of_another_machine(self):
        # Which may round noise differently.
        first = make(num_steps=4)
        steps(first, Quadratics(), 3)
        state = first.state_dict()
        for charge in state["charges"]:
            charge["event"]["noise_multiplier"] *= 1 + 1e-14
        second = make(num_steps=4)
        second.load_state_dict(state)
        assert len(second.ledger) == 3

    def test_secure_noise_is_not_mixed_with_other_noise(self):
        kwargs = {"num_steps": 4, "guarantee": ApproxDP(1.0, 1e-5), "generator": None}
        first = make(secure=True, **kwargs)
        steps(first, Quadratics(), 2)
        second = make(secure=True, **kwargs)
        second.load_state_dict(first.state_dict())
        assert len(second.ledger) == 2
        with pytest.raises(OptimizerStateError, match="secure noise"):
            make(**kwargs).load_state_dict(first.state_dict())

    def test_a_baseline_has_no_charges(self):
        first = GIBO(unit_box(3), 200, 4)
        steps(first, Quadratics(), 2)
        state = first.state_dict()
        assert not {"runs", "charges"} & set(state)
        charged = make(num_steps=4)
        steps(charged, Quadratics(), 1)
        with pytest.raises(OptimizerStateError, match="of 'dp-gibo', not of 'gibo'"):
            GIBO(unit_box(3), 200, 4).load_state_dict(charged.state_dict())
        with pytest.raises(OptimizerStateError, match="of 'gibo', not of 'dp-gibo'"):
            make(num_steps=4).load_state_dict(state)

    def test_what_is_charged_again_is_what_was_drawn(self):
        # Not what the new optimizer would have drawn.
        first = make(num_steps=4)  # seeded
        steps(first, Quadratics(), 3)
        second = make(num_steps=4, generator=None)
        second.load_state_dict(first.state_dict())
        assert second.certificate().for_experiments_only
        assert second.ledger.entries[0].event == first.ledger.entries[0].event

    def test_copies_of_a_state_are_told_apart(self):
        first = make(num_steps=4)
        steps(first, Quadratics(), 2)
        forks = [make(num_steps=4), make(num_steps=4)]
        for fork in forks:
            fork.load_state_dict(first.state_dict())
            steps(fork, Quadratics(), 1)
        ledger = Ledger()
        for fork in forks:
            make(num_steps=4, ledger=ledger).load_state_dict(fork.state_dict())
        # Two steps in common, and one each.
        assert sum(entry.count for entry in ledger.entries) == 4

    def test_a_step_back_is_remembered(self):
        # What was drawn after the state was saved stays paid for, in later states too.
        problem, opt = Quadratics(), make(num_steps=4)
        steps(opt, problem, 1)
        state = opt.state_dict()
        steps(opt, problem, 2)
        opt.load_state_dict(state)
        steps(opt, problem, 1)
        assert opt.done
        other = make(num_steps=4)
        other.load_state_dict(opt.state_dict())
        assert abs(other.ledger.accountant().to_gdp().mu - 1.0) < 1e-6
        assert other.done

    def test_a_ledger_that_others_have_charged_is_not_left_behind(self, tmp_path):
        first = make(mu=0.5)
        second = make(mu=0.3, ledger=first.ledger)
        steps(second, Quadratics(), 1)
        with pytest.raises(OptimizerStateError, match="outlives the process"):
            first.run(Quadratics(), progress=False, checkpoint=tmp_path / "run.pt")

    def test_a_state_is_a_snapshot(self):
        problem, opt = Quadratics(), make(num_steps=4)
        steps(opt, problem, 1)
        state = opt.state_dict()
        kept = copy.deepcopy(state)
        other = make(num_steps=4)
        other.load_state_dict(state)
        steps(opt, problem, 2)
        steps(other, problem, 2)
        assert_equal(state, kept)

    def test_bounds_are_ones_own(self):
        bounds = unit_box(3)
        opt = make(bounds=bounds)
        bounds[1] = 0.1
        assert float(opt.bounds[1, 0]) == 1.0

    def test_other_settings(self):
        state = make(num_steps=4).state_dict()
        with pytest.raises(OptimizerStateError, match="num_steps=4 there, 5 here"):
            make(num_steps=5).load_state_dict(state)
        with CPU:
            other = make(num_steps=4, kernel=MaternKernel(nu=2.5))
        with pytest.raises(OptimizerStateError, match="kernel="):
            other.load_state_dict(state)
        with pytest.raises(OptimizerStateError, match="version"):
            make(num_steps=4).load_state_dict({**state, "version": 99})

    @pytest.mark.parametrize("cls", [GIBO, RandomSearch, GPUCB])
    def test_baselines_go_on(self, cls):
        def new():
            kwargs = {} if cls is GIBO else {"generator": seeded()}
            return cls(unit_box(2), 200, 4, **kwargs)

        problem = Quadratics(d=2)
        first = new()
        steps(first, problem, 1)
        second = new()
        second.load_state_dict(first.state_dict())
        assert torch.equal(second.history[0].x, first.history[0].x)
        assert second.num_evaluations == first.num_evaluations
        if cls is RandomSearch:  # other points than before, the same as without a stop
            assert torch.equal(second.ask(), first.ask())


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
        assert read_checkpoint(path, CPU) == {"step": 1}
        assert os.listdir(tmp_path) == ["run.pt"]

    def test_damaged(self, tmp_path):
        path = tmp_path / "run.pt"
        path.write_bytes(b"not a checkpoint")
        with pytest.raises(OptimizerStateError, match="cannot be read"):
            make().run(Quadratics(), progress=False, checkpoint=path)
        torch.save([1, 2], path)
        with pytest.raises(OptimizerStateError, match="holds no state"):
            read_checkpoint(path, CPU)

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
            state = read_checkpoint(path, torch.device("cpu"))
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
    resumed.load_state_dict(read_checkpoint(path, torch.device("cpu")))
    assert resumed.done
    assert 58 <= len(resumed.history) <= 60
