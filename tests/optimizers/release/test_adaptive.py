"""Peek, then pick: budgets, points, interruptions and states."""

import math
from collections import Counter

import pytest
import torch

from botorch_dp import GDP, RDP, ApproxDP, Ledger, PrivateBO, PureDP
from botorch_dp.exceptions import (
    BudgetExceededError,
    InvalidArgumentError,
    OptimizerStateError,
)
from botorch_dp.optimizers.release.planning import spread_out
from botorch_dp.privacy import (
    GaussianEvent,
    PermuteAndFlipEvent,
    PermuteAndFlipMechanism,
    SeededNoise,
    curves,
)
from botorch_dp.privacy.budget import after_choice
from tests.optimizers.problems import (
    DOUBLE,
    held_numbers,
    seeded,
    unit_box,
)
from tests.optimizers.release.problems import Bowls, candidates, make

GUARANTEES = [GDP(1.0), ApproxDP(1.0, 1e-6), RDP(8.0, 0.5)]


def adaptive(num_steps=8, guarantee=GDP(1.0), **kwargs):  # noqa: B008
    kwargs.setdefault("output", "point")
    kwargs.setdefault("num_peeks", 4)
    return make(num_steps=num_steps, guarantee=guarantee, adaptive=True, **kwargs)


def interrupted(*args):
    raise KeyboardInterrupt


class TestBudget:
    @pytest.mark.parametrize("guarantee", GUARANTEES)
    @pytest.mark.parametrize("output", ["point", "both", "value"])
    def test_whole_run(self, guarantee, output):
        opt = adaptive(guarantee=guarantee, output=output)
        planned = Counter(dict(opt.planned_releases()))
        result = opt.run(Bowls(), progress=False)
        charged = Counter()
        for entry in opt.ledger.entries:
            charged[entry.event] += entry.count
        assert charged == planned
        assert sum(charged.values()) == (5 if output == "point" else 6)
        assert opt.ledger.accountant().within(guarantee)
        assert (result.value is None) == (output == "point")
        assert bool(result.x.isnan().any()) == (output == "value")

    @pytest.mark.parametrize("output", ["point", "both"])
    def test_nothing_is_left(self, output):
        opt = adaptive(guarantee=ApproxDP(1.0, 1e-6), output=output)
        opt.run(Bowls(), progress=False)
        spent = opt.ledger.accountant().get_epsilon(1e-6)
        assert spent == pytest.approx(1.0, rel=1e-6)

    def test_shares_of_epsilon(self):
        guarantee = ApproxDP(2.0, 1e-6)
        opt = adaptive(guarantee=guarantee, n=10)
        (peek, count), (pick, once) = opt.planned_releases()
        assert (count, once) == (4, 1)
        assert isinstance(pick, PermuteAndFlipEvent)
        assert pick.epsilon == pytest.approx(0.45 * 2.0)
        assert opt.details["scale"] == pytest.approx(2 / 10 / 0.9)
        mu = after_choice(guarantee, 0.9).mu
        assert peek.gdp_mu == pytest.approx(mu / 2, rel=1e-12)
        assert opt.details["noise_std"] == pytest.approx(2 / mu / 10)

    def test_shares_of_mu(self):
        opt = adaptive(guarantee=GDP(2.0), n=10, peek_share=0.3)
        epsilon = curves.gdp_pure_epsilon(2 * math.sqrt(0.7))
        assert opt.details["scale"] == pytest.approx(2 / 10 / epsilon)
        noise = 2 / (10 * 2 * math.sqrt(0.3))  # sqrt(4) peeks share mu^2
        assert opt.details["noise_std"] == pytest.approx(noise)

    def test_a_value_gets_half(self):
        opt = adaptive(guarantee=GDP(2.0), n=10, output="both")
        (peek, _), (pick, _), (value, _) = opt.planned_releases()
        used = curves.gdp_pure_epsilon(2 * math.sqrt(0.45 / 2))
        assert pick == PermuteAndFlipEvent(used)
        left = 4 * (1 - 0.45 / 2)
        assert 4 * peek.gdp_mu**2 == pytest.approx(left / 2)
        assert value.gdp_mu**2 == pytest.approx(left / 2)
        assert opt.details["value_noise_std"] == pytest.approx(
            0.1 / math.sqrt(left / 2)
        )

    @pytest.mark.parametrize("guarantee", [ApproxDP(1.0, 1e-6), RDP(8.0, 0.5)])
    def test_discrete_noise(self, guarantee):
        pytest.importorskip("opendp")
        opt = adaptive(guarantee=guarantee, secure=True, generator=None, output="both")
        opt.run(Bowls(), progress=False)
        assert opt.ledger.accountant().within(guarantee)

    @pytest.mark.parametrize(
        ("kwargs", "match"),
        [
            ({"num_peeks": 9}, "num_peeks must be at most num_steps=8, got 9"),
            ({"num_peeks": 0}, "num_peeks"),
            ({"peek_share": 1.0}, "peek_share"),
            ({"acquisition": "random"}, "acquisition must be one of"),
            ({"scoring": "linear"}, "does not take these options"),
            ({"guarantee": PureDP(1.0)}, "Gaussian noise can meet"),
        ],
    )
    def test_misuse(self, kwargs, match):
        with pytest.raises(InvalidArgumentError, match=match):
            adaptive(**kwargs)


class TestPoints:
    def test_by_default(self):
        opt = PrivateBO(
            bounds=unit_box(2),
            num_records=300,
            guarantee=ApproxDP(1.0, 1e-6),
            loss_range=(0.0, 1.0),
            adaptive=True,
        )
        assert (opt.output, opt.batch_size, opt.num_steps) == ("point", 1, 68)
        assert opt.details["num_peeks"] == 20
        assert torch.equal(opt.ask()[0], torch.full((2,), 0.5, **DOUBLE))
        assert make(num_steps=1, guarantee=GDP(1.0), adaptive=True).details["num_peeks"]

    def test_first_points_fill_the_space(self):
        opt, points = adaptive(num_peeks=6), candidates()
        asked = []
        for _ in range(2):
            asked.append(opt.ask())
            opt.tell(Bowls()(asked[-1]))
        expected = spread_out(opt.search_candidates, 2)
        assert torch.equal(torch.cat(asked), points[expected])
        start = adaptive(initial_x=points[9]).ask()
        assert torch.equal(start[0], points[9])

    def test_one_step_by_hand(self):
        # After two peeks: a Gaussian process with the noise of the releases, dense.
        opt, problem = adaptive(num_peeks=4, num_steps=8), Bowls()
        for _ in range(2):
            opt.tell(problem(opt.ask()))
        state = opt.state_dict()["release"]
        D, X = state["indices"], opt.search_candidates
        gains = (0.5 - torch.tensor(state["values"], **DOUBLE)) / 0.25
        noise = 1e-4 + (opt.details["noise_std"] / 0.25) ** 2
        K = opt.kernel(X[D]).to_dense() + noise * torch.eye(2, **DOUBLE)
        cross = opt.kernel(X, X[D]).to_dense()
        mean = cross @ torch.linalg.solve(K, gains)
        variance = 1 - (cross * torch.linalg.solve(K, cross.mT).mT).sum(dim=-1)
        u = (mean - mean[D].max()) / variance.sqrt()
        density = (-(u**2) / 2).exp() / math.sqrt(2 * math.pi)
        improvement = variance.sqrt() * (density + u * torch.special.ndtr(u))
        improvement[D] = -1.0
        assert torch.equal(opt.ask()[0], opt.candidates[int(improvement.argmax())])

    @pytest.mark.parametrize("acquisition", ["ei", "thompson", "ucb"])
    def test_other_acquisitions_follow_what_was_released(self, acquisition):
        """The same releases lead to the same point, whatever the losses were."""
        opt, problem = adaptive(num_peeks=4, acquisition=acquisition), Bowls()
        for _ in range(3):
            opt.tell(problem(opt.ask()))
        state = opt.state_dict()["release"]
        other = adaptive(num_peeks=4, acquisition=acquisition)
        other.load_state_dict(opt.state_dict())
        assert torch.equal(other.ask()[-1], opt.ask()[0])
        D, X = state["indices"], opt.search_candidates
        gains = (0.5 - torch.tensor(state["values"], **DOUBLE)) / 0.25
        noise = 1e-4 + (opt.details["noise_std"] / 0.25) ** 2
        K = opt.kernel(X[D]).to_dense() + noise * torch.eye(3, **DOUBLE)
        cross = opt.kernel(X, X[D]).to_dense()
        mean = cross @ torch.linalg.solve(K, gains)
        variance = 1 - (cross * torch.linalg.solve(K, cross.mT).mT).sum(dim=-1)
        bound = mean + (2.0 * variance).sqrt()
        bound[D] = -math.inf
        best = opt.candidates[int(bound.argmax())]
        assert torch.equal(opt.ask()[0], best) or acquisition != "ucb"

    def test_acquisitions_lead_to_different_points(self):
        asked = []
        for acquisition in ("ei", "thompson", "ucb"):
            opt = adaptive(num_steps=12, num_peeks=10, acquisition=acquisition)
            opt.run(Bowls(), progress=False)
            asked.append(tuple(opt.state_dict()["release"]["indices"]))
        assert len(set(asked)) == 3

    def test_only_peeks_have_noise_and_no_point_comes_twice(self):
        opt = adaptive(num_steps=10, num_peeks=4)
        result = opt.run(Bowls(), progress=False)
        noise = [step.noise_std for step in result.history]
        assert noise == [opt.details["noise_std"]] * 4 + [0.0] * 6
        state = opt.state_dict()["release"]
        assert [value is None for value in state["values"]] == [False] * 4 + [True] * 6
        assert len(set(state["indices"])) == 10
        assert result.history[-1].num_evaluations == 10

    def test_the_pick_is_of_exact_means(self, monkeypatch):
        given = []
        release = PermuteAndFlipMechanism.release

        def pick(self, private_value, *, ledger):
            given.append(private_value)
            return release(self, private_value, ledger=ledger)

        monkeypatch.setattr(PermuteAndFlipMechanism, "release", pick)
        opt, problem = adaptive(), Bowls()
        opt.run(problem, progress=False)
        [scores] = given
        indices = opt.state_dict()["release"]["indices"]
        exact = -problem(opt.candidates[indices]).mean(dim=0)
        assert torch.allclose(scores, exact, atol=1e-12)

    def test_finds_a_good_candidate(self):
        problem = Bowls(n=5000)
        opt = adaptive(n=5000, num_steps=15)
        result = opt.run(problem, progress=False)
        truth = problem(candidates()).mean(dim=0)
        chosen = problem(result.x.unsqueeze(0)).mean()
        assert (truth < chosen).double().mean() < 0.05

    def test_beats_points_that_fill_the_space(self):
        # A narrow valley in five dimensions; the same number of evaluations.
        def losses(X):
            loss = ((X - 0.3).square().sum(dim=-1) / 0.6).clamp(max=1.0)
            return loss.expand(3000, -1)

        common = {
            "bounds": unit_box(5),
            "num_records": 3000,
            "guarantee": ApproxDP(1.0, 1e-6),
            "loss_range": (0.0, 1.0),
            "num_candidates": 2000,
            "num_steps": 40,
        }
        means = {}
        for name, kwargs in (
            ("stable", {"scoring": "evaluated"}),
            ("adaptive", {"adaptive": True}),
        ):
            found = [
                PrivateBO(**common, **kwargs, generator=seeded(seed)).run(
                    losses, progress=False
                )
                for seed in range(3)
            ]
            means[name] = sum(float(losses(r.x[None])[0]) for r in found) / 3
        assert means["adaptive"] < 0.7 * means["stable"]


class TestInterruptions:
    def test_a_lost_peek_is_not_made_again(self, monkeypatch):
        opt, problem = adaptive(num_steps=5, num_peeks=2), Bowls()
        opt.tell(problem(opt.ask()))
        losses = problem(opt.ask())
        with monkeypatch.context() as patch:
            patch.setattr(SeededNoise, "add_gaussian", interrupted)
            with pytest.raises(KeyboardInterrupt):
                opt.tell(losses)
        assert not opt.done
        opt.tell(losses)  # evaluated, without a second peek
        opt.run(problem, progress=False)
        assert [value is None for value in opt._strategy._released] == [
            False,
            *[True] * 4,
        ]
        assert sum(entry.count for entry in opt.ledger.entries) == 3

    def test_the_only_peek_is_lost(self, monkeypatch):
        # Nothing is known: the points are then the best of samples from the prior.
        opt, problem = adaptive(num_steps=3, num_peeks=1), Bowls()
        losses = problem(opt.ask())
        with monkeypatch.context() as patch:
            patch.setattr(SeededNoise, "add_gaussian", interrupted)
            with pytest.raises(KeyboardInterrupt):
                opt.tell(losses)
        opt.tell(losses)
        with pytest.raises(OptimizerStateError, match="Nothing is released"):
            opt.result()
        result = opt.run(problem, progress=False)
        assert result.x.isfinite().all()

    def test_what_was_paid_for_can_be_read(self, monkeypatch):
        opt, problem = adaptive(num_steps=3, num_peeks=2), Bowls()
        opt.tell(problem(opt.ask()))
        assert opt.result().x.isfinite().all()  # released, hence public
        opt.tell(problem(opt.ask()))
        losses = problem(opt.ask())
        monkeypatch.setattr(SeededNoise, "exponential_argmax", interrupted)
        with pytest.raises(KeyboardInterrupt):
            opt.tell(losses)
        assert opt.done
        with pytest.raises(OptimizerStateError, match="interrupted"):
            opt.ask()
        best = opt._strategy._posterior.mean.argmax()
        assert torch.equal(opt.result().x, opt.candidates[int(best)])
        assert held_numbers(opt._strategy._values) == {"/_size": 0}

    def test_a_pick_that_was_refused_can_be_told_again(self):
        # Neither the pick without its value, nor anything twice.
        cap = GDP(1.0)
        ledger = Ledger(cap=cap)
        opt = adaptive(num_steps=3, num_peeks=1, ledger=ledger, output="both")
        problem = Bowls()
        for _ in range(2):
            opt.tell(problem(opt.ask()))
        losses = problem(opt.ask())
        ledger.charge(GaussianEvent(2.0))  # somebody else
        for _ in range(2):
            with pytest.raises(BudgetExceededError):
                opt.tell(losses)
        assert len(ledger) == 2
        assert len(opt._strategy._rows) == 3
        state = opt.state_dict()["release"]
        assert len(state["indices"]) == 3

    def test_others_do_not_take_what_was_planned(self):
        # A plan that only exact accounting admits.
        guarantee = ApproxDP(1.0, 1e-6)
        ledger = Ledger(cap=guarantee)
        opt, problem = adaptive(guarantee=guarantee, ledger=ledger), Bowls()
        opt.tell(problem(opt.ask()))
        with pytest.raises(BudgetExceededError):
            ledger.charge(GaussianEvent(1.0))
        opt.run(problem, progress=False)
        assert ledger.accountant().within(guarantee)


class TestStates:
    @pytest.mark.parametrize("output", ["point", "both"])
    @pytest.mark.parametrize("num_told", [2, 4, 6])
    def test_goes_on(self, num_told, output):
        # Losses are lost: all points again, in one step with the next one.
        problem, whole = Bowls(), adaptive(output=output)
        whole.run(problem, progress=False)
        first = adaptive(output=output)
        for _ in range(num_told):
            first.tell(problem(first.ask()))
        second = adaptive(output=output)
        second.load_state_dict(first.state_dict())
        X = second.ask()
        indices = whole.state_dict()["release"]["indices"]
        assert torch.equal(X, whole.candidates[indices[: num_told + 1]])
        second.tell(problem(X))
        assert len(second.ask()) == 1
        second.run(problem, progress=False)
        assert second.state_dict()["release"] == whole.state_dict()["release"]
        assert torch.equal(second.result().x, whole.result().x)
        assert second.result().value == whole.result().value
        assert second.num_evaluations == 8 + num_told
        assert second.account.num_charged == whole.account.num_charged

    def test_a_finished_state_is_kept(self):
        opt = adaptive(num_steps=3, num_peeks=1)
        opt.run(Bowls(), progress=False)
        other = adaptive(num_steps=3, num_peeks=1)
        other.load_state_dict(opt.state_dict())
        assert other.done
        assert torch.equal(other.result().x, opt.result().x)

    def test_other_peeks_are_other_settings(self):
        opt = adaptive()
        opt.tell(Bowls()(opt.ask()))
        for changes in ({"num_peeks": 3}, {"peek_share": 0.5}, {"acquisition": "ucb"}):
            other = adaptive(**changes)
            with pytest.raises(OptimizerStateError):
                other.load_state_dict(opt.state_dict())

    def test_damaged(self):
        problem, opt = Bowls(), adaptive(num_steps=4, num_peeks=2)
        for _ in range(3):
            opt.tell(problem(opt.ask()))
        for damage in (
            lambda state: state["release"].update(indices=[10**6, 1, 2]),
            lambda state: state["release"].update(indices=[1, 1, 2]),
            lambda state: state["release"].update(values=[float("nan"), 1.0, None]),
            lambda state: state["release"].update(values=[1.0, 1.0, 1.0]),
            lambda state: state["release"].update(indices=[], values=[1.0]),
            lambda state: state["release"].update(
                indices=list(range(5)), values=[None] * 5
            ),
            lambda state: state.update(released={"index": 10**6, "value": None}),
            lambda state: state["charges"].pop(),
            lambda state: (
                state["charges"].pop(),
                state["release"].update(values=[0.5, None, None]),
            ),
            lambda state: state["charges"][0].pop("adjacency"),
            lambda state: state["charges"][0].update(adjacency="anybody"),
            lambda state: state["charges"][0].update(run="other run"),
            lambda state: state["charges"][0].update(unit="agent"),
            lambda state: state["charges"][0].update(mechanism=3),
            lambda state: state["charges"][0].update(condition=3),
            lambda state: state.update(runs=[""]),
        ):
            state = opt.state_dict()
            damage(state)
            other = adaptive(num_steps=4, num_peeks=2)
            with pytest.raises(OptimizerStateError):
                other.load_state_dict(state)
            assert len(other.ledger) == 0
            assert other.history == ()

    def test_an_interruption_while_it_learns(self, monkeypatch):
        problem, opt = Bowls(), adaptive(num_steps=4, num_peeks=2)
        opt.tell(problem(opt.ask()))
        losses = problem(opt.ask())
        with monkeypatch.context() as patch:
            patch.setattr(opt._strategy._posterior, "observe", interrupted)
            with pytest.raises(KeyboardInterrupt):
                opt.tell(losses)
        assert opt.account.num_charged == 2  # paid, and lost
        adaptive(num_steps=4, num_peeks=2).load_state_dict(opt.state_dict())
        while not opt.done:
            opt.tell(problem(opt.ask()))
        assert opt.result().x.isfinite().all()
        assert opt.account.num_charged == 3
