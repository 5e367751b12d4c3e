"""Stable releases: probabilities, budgets, what is kept and what leaves."""

import pytest
import torch

from botorch_dp import ApproxDP, Ledger, PrivateBO, PureDP
from botorch_dp.exceptions import (
    BudgetExceededError,
    OptimizerStateError,
)
from botorch_dp.optimizers.core.private_values import PrivateValues
from botorch_dp.optimizers.release.planning import spread_out
from botorch_dp.privacy import (
    LaplaceMechanism,
    PermuteAndFlipEvent,
    PermuteAndFlipMechanism,
    PureEvent,
    SeededNoise,
    audit_epsilon,
    worst_log_ratio,
)
from tests.optimizers.problems import (
    DEVICE,
    DOUBLE,
    differing,
    held_numbers,
    seeded,
    unit_box,
)
from tests.optimizers.release.problems import Bowls, N, candidates, make
from tests.optimizers.release.test_scores import make_scores
from tests.privacy.mechanisms.test_permute_and_flip import in_polynomial_time


class TestStable:
    def test_probabilities_on_neighbours(self):
        """Permute-and-flip, in closed form: the ratio is at most e^epsilon."""
        scores, _ = make_scores()
        epsilon = 0.7
        base = 4 * torch.rand(7, 5, generator=seeded(), **DOUBLE)
        worst = 0.0
        for method in ("evaluated", "per-record", "linear"):
            scale = 2 * scores.sensitivity(method) / epsilon
            for seed in range(10):
                low, high = base.clone(), base.clone()
                corner = torch.rand(5, generator=seeded(seed), **DOUBLE) < 0.5
                low[0] = torch.where(corner, 0.0, 4.0)
                high[0] = torch.where(corner, 4.0, 0.0)
                found = [
                    torch.cat([*scores.private_scores(method, losses)])
                    for losses in (low, high)
                ]
                logs = [
                    torch.from_numpy(
                        in_polynomial_time(each.cpu().numpy(), scale)
                    ).log()
                    for each in found
                ]
                worst = max(worst, worst_log_ratio(*logs))
        assert worst <= epsilon * (1 + 1e-9)
        assert worst > epsilon / 4  # not wastefully far from it

    @pytest.mark.parametrize("method", ["evaluated", "per-record", "linear"])
    @pytest.mark.parametrize("output", ["point", "both"])
    def test_the_choice_has_noise_for_its_sensitivity(
        self, monkeypatch, method, output
    ):
        # 2 Delta / epsilon, with Delta = R/n, or |w|_1 R/n for the worst candidate.
        n, T, noise_variance, scales = 10, 5, 1e-3, []
        choose = SeededNoise.exponential_argmax

        def exponential_argmax(self, private_chunks, scale):
            scales.append(scale)
            return choose(self, private_chunks, scale)

        monkeypatch.setattr(SeededNoise, "exponential_argmax", exponential_argmax)
        opt = make(
            n=n,
            num_steps=T,
            output=output,
            scoring=method,
            noise_variance=noise_variance,
            loss_range=(-1.0, 3.0),
        )
        asked = []

        def problem(X):
            asked.append(X)
            return Bowls(n=n)(X)

        opt.run(problem, progress=False)
        X, points = opt.search_box.to_search(torch.cat(asked)), opt.search_candidates
        K = opt.kernel(X).to_dense() + noise_variance * torch.eye(T, **DOUBLE)
        weights = torch.linalg.solve(K, opt.kernel(X, points).to_dense())  # T x N
        largest = weights.abs().sum(dim=0).max() if method == "linear" else 1.0
        epsilon = 1.0 if output == "point" else 0.5
        assert scales == pytest.approx([2 * float(largest) * 4.0 / n / epsilon])

    def test_the_value_is_audited(self):
        # All losses at one end of the range or, of one record, at the other. Half of
        # the budget is the value's; 400 runs refute a claim of half of that.
        n, runs = 3, 400
        released = []
        for first in (0.0, 1.0):
            generator, values = seeded(int(first)), []
            losses = torch.zeros(n, 1, **DOUBLE)
            losses[0] = first
            for _ in range(runs):
                opt = make(
                    n=n,
                    num_steps=1,
                    guarantee=PureDP(4.0),
                    generator=generator,
                    candidates=candidates(2),
                    scoring="evaluated",
                )
                opt.ask()
                opt.tell(losses)
                values.append(opt.result().value)
            released.append(torch.tensor(values, **DOUBLE))
        result = audit_epsilon(released[0], released[1])
        assert not result.rejects(PureDP(2.0))
        assert result.rejects(PureDP(1.0))  # it does see what is there

    def test_runs_without_any_setting(self):
        # The budget is for the point; 75 = n eps / 2 candidates in one step.
        n, problem = 150, Bowls(n=150)
        opt = PrivateBO(
            bounds=unit_box(2),
            num_records=n,
            guarantee=PureDP(1.0),
            loss_range=(0.0, 1.0),
            generator=seeded(),
        )
        result = opt.run(problem, progress=False)
        assert (opt.output, opt.num_steps, opt.batch_size) == ("point", 1, 75)
        assert (result.value, len(opt.ledger)) == (None, 1)
        assert opt.ledger.entries[0].event == PermuteAndFlipEvent(1.0)
        assert opt.ledger.entries[0].mechanism == "permute-and-flip"
        assert len(opt.candidates) == 10_000
        centre = torch.full((1, 2), 0.5, **DOUBLE)
        excess = problem(result.x.unsqueeze(0)).mean() - problem(centre).mean()
        assert excess < 0.1

    def test_half_of_the_budget_plans_half_of_the_points(self):
        common = {"bounds": unit_box(2), "num_steps": None, "n": 150}
        assert make(output="both", **common).batch_size == 38
        assert make(output="point", max_evaluations=20, **common).batch_size == 20
        assert make(output="point", batch_size=25, **common).num_steps == 3
        assert make(num_steps=None, output="point", n=150).batch_size == N

    def test_points_fill_a_box(self):
        # The start, then the Sobol sequence, no more of it near walls than elsewhere.
        d = 8
        opt = make(bounds=unit_box(d), num_steps=1, batch_size=128)
        X = opt.ask()
        assert torch.equal(X, opt.candidates[:128])
        assert torch.equal(X[0], torch.full((d,), 0.5, **DOUBLE))
        near_a_wall = ((X < 0.1) | (X > 0.9)).double().mean()
        assert near_a_wall < 0.25  # the posterior's variance chose 65 % there

    def test_points_of_a_list_are_spread_out(self):
        points = candidates()
        opt = make(num_steps=1, batch_size=6, initial_x=points[11])
        X = opt.ask()
        assert torch.equal(X, points[spread_out(opt.search_candidates, 6, 11)])
        everything = make(num_steps=1, batch_size=N).ask()
        assert len(everything.unique(dim=0)) == N

    def test_finds_a_good_candidate(self):
        problem = Bowls(n=5000)
        opt = make(n=5000, num_steps=15)
        result = opt.run(problem, progress=False)
        truth = problem(candidates()).mean(dim=0)
        chosen = problem(result.x.unsqueeze(0)).mean()
        assert (truth < chosen).double().mean() < 0.15  # among the best
        assert abs(result.value - float(chosen)) < 0.05

    @pytest.mark.parametrize(
        ("guarantee", "output", "charges"),
        [
            (PureDP(1.0), "both", 2),
            (PureDP(1.0), "point", 1),
            (PureDP(1.0), "value", 2),
            (ApproxDP(1.0, 1e-6), "both", 2),
            (ApproxDP(1.0, 1e-6), "point", 1),
        ],
    )
    def test_budget(self, guarantee, output, charges):
        opt = make(guarantee=guarantee, output=output)
        result = opt.run(Bowls(), progress=False)
        assert len(opt.ledger) == charges
        assert opt.ledger.accountant().within(guarantee)
        assert (result.value is None) == (output == "point")
        assert bool(result.x.isnan().any()) == (output == "value")

    def test_points_do_not_depend_on_losses(self):
        asked = []
        for scale in (1.0, -3.0):
            opt, problem = make(), Bowls(seed=int(scale > 0))
            points = []
            while not opt.done:
                X = opt.ask()
                points.append(X)
                opt.tell(scale * problem(X))
            asked.append(torch.cat(points))
        assert torch.equal(*asked)

    def test_nothing_public_before_the_end(self):
        states = []
        for scale in (1.0, -3.0):
            opt, problem = make(), Bowls(seed=int(scale > 0))
            for _ in range(5):
                opt.tell(scale * problem(opt.ask()))
            with pytest.raises(OptimizerStateError, match="Nothing is released"):
                opt.result()
            assert len(opt.ledger) == 0
            state = opt.state_dict()
            del state["runs"]
            states.append(str(state))
        assert states[0] == states[1]

    def test_no_losses_are_kept_in_the_end(self, monkeypatch):
        # Two unlike data sets, the same releases: while they run, the optimizers differ
        # in their losses, and when they have ended in nothing at all.
        def choose(self, private_scores, *, ledger):
            first, *_ = private_scores
            self._charge(ledger, self.event(), 1, first.device)
            return torch.tensor(1, device=DEVICE)

        def add(self, private_value, *, ledger, batch_dims=0):
            self._charge(ledger, self.event(1), 1, private_value.device)
            return torch.tensor([0.25], **DOUBLE)

        monkeypatch.setattr(PermuteAndFlipMechanism, "release", choose)
        monkeypatch.setattr(LaplaceMechanism, "release", add)
        opts = make(num_steps=2), make(num_steps=2)
        problems = Bowls(seed=0), Bowls(seed=1)
        for _ in range(2):
            for opt, problem in zip(opts, problems, strict=True):
                opt.tell(problem(opt.ask()))
            if not opts[0].done:
                assert differing(*opts)
        assert all(opt.done for opt in opts)
        assert differing(*opts) == []

    def test_losses_are_private_values_until_the_end(self):
        # Nothing else has them: not the strategy's other attributes, not its repr.
        opt, problem = make(num_steps=2), Bowls()
        opt.tell(problem(opt.ask()))
        strategy = opt._strategy
        assert isinstance(strategy._values, PrivateValues)
        held = held_numbers({**vars(strategy), "_values": None, "problem": None})
        shapes = [part.shape for part in held.values() if torch.is_tensor(part)]
        assert not any(300 in shape for shape in shapes)  # the number of records
        opt.tell(problem(opt.ask()))
        assert held_numbers(strategy._values) == {"/_size": 0}
        assert strategy._rows == {}

    def test_a_release_that_was_interrupted_is_not_made_again(self, monkeypatch):
        opt, problem = make(num_steps=2, ledger=Ledger()), Bowls()
        opt.tell(problem(opt.ask()))
        losses = problem(opt.ask())

        def interrupted(*args):
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(SeededNoise, "exponential_argmax", interrupted)
            with pytest.raises(KeyboardInterrupt):
                opt.tell(losses)
        for call in (lambda: opt.tell(losses), opt.ask, opt.result):
            with pytest.raises(OptimizerStateError, match="interrupted"):
                call()
        assert len(opt.ledger) == 1
        assert held_numbers(opt._strategy._values) == {"/_size": 0}

    def test_a_release_that_was_refused_can_be_told_again(self):
        # Nothing was charged: the same losses again, not twice the column.
        ledger = Ledger(cap=PureDP(1.0))
        opt, problem = make(num_steps=2, ledger=ledger), Bowls()
        opt.tell(problem(opt.ask()))
        losses = problem(opt.ask())
        ledger.charge(PureEvent(0.1))  # somebody else
        for _ in range(2):
            with pytest.raises(BudgetExceededError):
                opt.tell(losses)
        assert len(opt._strategy._rows) == 2
        kept = opt._strategy._values.columns([*opt._strategy._rows.values()])
        assert torch.equal(kept[:, 1:], losses)
