"""minimize: plans, spends exactly its guarantee, and finds a good point."""

import math

import pytest
import torch

import botorch_dp
from botorch_dp import GDP, RDP, ApproxDP, Ledger, PureDP, minimize
from botorch_dp.exceptions import (
    BudgetExceededError,
    InvalidArgumentError,
    WeakGuaranteeWarning,
)
from botorch_dp.privacy import GaussianEvent, PermuteAndFlipEvent
from botorch_dp.privacy.budget import after_choice
from tests.optimizers.problems import DEVICE, seeded, unit_box

GUARANTEE = ApproxDP(1.0, 1e-5)


class Task:
    """Squared distances to records around a point, between 0 and 1; counts calls."""

    def __init__(self, n=2000, d=3, seed=0, bounds=None, **tkwargs):
        tkwargs = {"dtype": torch.float64, "device": DEVICE, **tkwargs}
        self.bounds = unit_box(d, **tkwargs) if bounds is None else bounds
        self.centre = torch.linspace(0.2, 0.8, d, **tkwargs)
        noise = torch.randn(n, d, generator=seeded(seed), **tkwargs)
        self.records = self.centre + 0.1 * noise
        self.num_points = 0

    def __call__(self, X):
        self.num_points += len(X)
        return (X - self.records[:, None]).square().mean(dim=-1).clamp(max=1.0)

    def run(self, **kwargs):
        kwargs = {
            "num_records": len(self.records),
            "guarantee": GUARANTEE,
            "loss_range": (0.0, 1.0),
            "generator": seeded(),
            "progress": False,
            **kwargs,
        }
        return minimize(self, self.bounds, **kwargs)


class TestResult:
    @pytest.mark.parametrize("d", [1, 3, 8])
    def test_finds_the_optimum(self, d):
        task = Task(d=d)
        assert float((task.run().x - task.centre).norm()) < 0.1

    def test_two_basins(self):
        # The start's basin ends at 0.5; the better one has its centre at 0.8.
        deep = torch.full((2,), 0.8, dtype=torch.float64, device=DEVICE)
        noise = torch.randn(
            3000, 1, 2, generator=seeded(), dtype=torch.float64, device=DEVICE
        )
        shift = 0.01 * noise

        def losses(X):
            moved = X - shift
            narrow = 1 - (-(moved - deep).square().mean(dim=-1) / 0.03).exp()
            wide = 0.5 + (moved - 0.35).square().mean(dim=-1)
            return torch.minimum(narrow, wide).clamp(0.0, 1.0)

        def run(explore):
            return minimize(
                losses,
                unit_box(2),
                num_records=3000,
                guarantee=GUARANTEE,
                loss_range=(0.0, 1.0),
                explore=explore,
                progress=False,
                generator=seeded(),
            ).x

        assert float((run(None) - deep).abs().max()) < 0.1
        assert float((run(False) - deep).abs().max()) > 0.3

    def test_history_counts_all_evaluations(self):
        task = Task()
        result = task.run()
        counts = [step.num_evaluations for step in result.history]
        assert counts == sorted(counts)
        numbers = [step.number for step in result.history]
        assert numbers == list(range(1, len(numbers) + 1))
        assert result.num_evaluations == task.num_points
        assert task.num_points == 100 + 20 * 6
        assert result.details["plan"]["num_candidates"] == 100

    @pytest.mark.parametrize("allowed", [2, 7, 30, 61, 150])
    def test_evaluations_are_limited(self, allowed):
        for d in (2, 9):
            task = Task(n=500, d=d)
            result = task.run(max_evaluations=allowed)
            assert task.num_points == result.num_evaluations <= allowed

    def test_log_scales_and_a_start(self):
        bounds = torch.tensor(
            [[1e-4, 0.0], [1.0, 10.0]], dtype=torch.float64, device=DEVICE
        )
        task = Task(d=2, bounds=bounds)

        def losses(X):
            u = torch.stack([X[:, 0].log10() / 4 + 1, X[:, 1] / 10], dim=-1)
            return task(u)

        result = minimize(
            losses,
            bounds,
            num_records=2000,
            guarantee=GUARANTEE,
            loss_range=(0.0, 1.0),
            transform=("log", "linear"),
            initial_x=torch.tensor([0.5, 1.0], dtype=torch.float64, device=DEVICE),
            progress=False,
            generator=seeded(),
        )
        assert float(result.x[0].log10() / 4 + 1) == pytest.approx(0.2, abs=0.1)
        assert float(result.x[1]) == pytest.approx(8.0, abs=1.0)

    def test_starts_where_it_is_told(self):
        task = Task(d=8)
        asked = []
        start = torch.full((8,), 0.9, dtype=torch.float64, device=DEVICE)

        def losses(X):
            asked.append(X)
            return task(X)

        minimize(
            losses,
            task.bounds,
            num_records=2000,
            guarantee=GUARANTEE,
            loss_range=(0.0, 1.0),
            initial_x=start,
            progress=False,
        )
        assert float((asked[0] - start).norm(dim=-1).max()) < 0.5
        assert botorch_dp.minimize is minimize

    def test_dtype(self):
        result = Task(d=2, dtype=torch.float32).run(max_evaluations=40)
        assert result.x.dtype == torch.float32

    def test_a_clip_norm_instead_of_a_range(self):
        task = Task(d=2)
        result = task.run(loss_range=None, clip_norm=1.0)
        assert result.details["plan"]["method"] == "dp-gibo"
        assert float((result.x - task.centre).norm()) < 0.1

    def test_prints_the_plan_and_shows_a_bar(self, capsys):
        Task(n=500, d=2).run(max_evaluations=20, progress=True)
        printed = capsys.readouterr()
        assert printed.out.count("\n") == 2
        assert printed.out.startswith("Plan: ")
        assert "18/18" in printed.err  # six steps of three points


class TestSpending:
    def test_charges_the_choice_and_the_steps(self):
        ledger = Ledger(cap=GUARANTEE)
        plan = Task().run(ledger=ledger).details["plan"]
        choice, *steps = ledger.entries
        assert choice.event == PermuteAndFlipEvent(plan["choice_epsilon"])
        assert len(steps) == 20
        assert all(isinstance(step.event, GaussianEvent) for step in steps)
        mu = math.sqrt(sum(step.event.gdp_mu**2 for step in steps))
        assert mu == pytest.approx(after_choice(GUARANTEE, choice.event.epsilon).mu)

    @pytest.mark.parametrize(
        "guarantee", [GUARANTEE, GDP(0.8), RDP(order=8, epsilon=1.0), PureDP(0.5)]
    )
    def test_certifies_at_most_the_guarantee(self, guarantee):
        ledger = Ledger(cap=guarantee)
        result = Task(n=500).run(guarantee=guarantee, ledger=ledger)
        assert result.certificate.num_releases == len(ledger)
        if isinstance(guarantee, ApproxDP):
            spent = result.certificate.epsilons[guarantee.delta]
            assert 0.99 * guarantee.epsilon < spent <= guarantee.epsilon * (1 + 1e-9)

    def test_certificate_says_what_was_chosen(self):
        text = str(Task(n=500).run().certificate)
        assert "num_candidates=100" in text
        assert "loss_range=[0.0, 1.0]" in text
        assert "other runs" not in text
        assert "minimize: permute-and-flip, then dp-gibo" in text
        assert "may find a better basin" in text

    def test_a_ledger_that_cannot_pay_is_refused_before_the_losses(self):
        task = Task()
        with pytest.raises(BudgetExceededError):
            task.run(ledger=Ledger(cap=ApproxDP(0.5, 1e-5)))
        assert task.num_points == 0

    def test_public_points_follow_from_releases(self):
        # The same noise and releases of another data set ask for the same points until
        # the first release: the candidates and the start's stencil.
        asked = {}
        for seed in (0, 1):
            task = Task(n=500, d=8, seed=seed)
            points = asked.setdefault(seed, [])

            def losses(X, task=task, points=points):
                points.append(X)
                return task(X)

            minimize(
                losses,
                task.bounds,
                num_records=500,
                guarantee=GUARANTEE,
                loss_range=(0.0, 1.0),
                progress=False,
                max_evaluations=27,
            )
        assert torch.equal(asked[0][0], asked[1][0])


class TestMistakes:
    def test_losses_must_be_a_function(self):
        with pytest.raises(InvalidArgumentError, match="losses"):
            minimize(
                torch.zeros(3, device=DEVICE),
                unit_box(2),
                num_records=3,
                guarantee=GUARANTEE,
                loss_range=(0, 1),
            )

    def test_identity_has_no_unit(self):
        with pytest.raises(InvalidArgumentError, match="'linear' or 'log'"):
            Task().run(transform="identity")

    def test_chunks_are_refused_before_a_charge(self):
        task, ledger = Task(n=500), Ledger(cap=GUARANTEE)
        with pytest.raises(InvalidArgumentError, match="got a tuple"):
            minimize(
                lambda X: task(X).split(100),
                task.bounds,
                num_records=500,
                guarantee=GUARANTEE,
                loss_range=(0, 1),
                ledger=ledger,
                progress=False,
            )
        assert len(ledger) == 0

    def test_a_range_that_single_precision_cannot_clip_to(self):
        task, ledger = Task(n=500, dtype=torch.float32), Ledger(cap=GUARANTEE)
        with pytest.raises(InvalidArgumentError, match="must lie between"):
            task.run(loss_range=(0.0, 1e-31), ledger=ledger)
        assert (len(ledger), task.num_points) == (0, 0)

    def test_start_outside(self):
        with pytest.raises(InvalidArgumentError, match="initial_x"):
            Task(d=2).run(initial_x=torch.full((2,), 2.0, device=DEVICE).double())

    def test_a_large_delta_warns(self):
        with pytest.warns(WeakGuaranteeWarning) as caught:
            Task(n=500, d=2).run(guarantee=ApproxDP(1.0, 1e-2), max_evaluations=4)
        assert len(caught) == 1

    def test_losses_of_a_wrong_shape_are_refused_before_a_charge(self):
        ledger = Ledger(cap=GUARANTEE)
        with pytest.raises(InvalidArgumentError, match="one for each record"):
            minimize(
                lambda X: torch.zeros(7, len(X), dtype=X.dtype, device=DEVICE),
                unit_box(2),
                num_records=500,
                guarantee=GUARANTEE,
                loss_range=(0, 1),
                ledger=ledger,
                progress=False,
            )
        assert len(ledger) == 0
