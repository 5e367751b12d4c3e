"""A joint budget by selection: its plan, its charges, its runs and what leaves them."""

import io
import pickle

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from botorch_dp import GDP, RDP, ApproxDP, Certificate
from botorch_dp.exceptions import (
    BudgetExceededError,
    InvalidArgumentError,
    WeakGuaranteeWarning,
)
from botorch_dp.integrations.opacus import JointBudget, recommended_count
from botorch_dp.integrations.opacus.selection_run import TrainAndScore
from botorch_dp.privacy import (
    AtLeast,
    AtMost,
    Binomial,
    GaussianEvent,
    Poisson,
    PoissonGaussianEvent,
    PrivacyAccountant,
    SelectionEvent,
    TruncatedNegativeBinomial,
)
from tests.integrations.opacus.runs import seeded

GUARANTEE = ApproxDP(4.0, 1e-5)
PLAN = {"sample_rate": 0.25, "steps_per_run": 8, "num_records": 120}
FIXED = Binomial(3, 1.0)  # three runs, so that tests can count

trains = [
    pytest.mark.default_device,
    pytest.mark.filterwarnings("ignore:Full backward hook"),
]


def budget(guarantee=GUARANTEE, **changed):
    return JointBudget(guarantee, **{**PLAN, "count": Poisson(6.0), **changed})


def epsilon(event, delta=1e-5):
    accountant = PrivacyAccountant()
    accountant.compose(event)
    return accountant.get_epsilon(delta)


def cost(noise, count, *, score=None):
    base = [(PoissonGaussianEvent(noise, 0.25), 8)]
    if score is not None:
        base.append((score, 1))
    return epsilon(SelectionEvent(tuple(base), count))


class TestPlan:
    @pytest.mark.parametrize(
        "count",
        [
            Poisson(6.0),
            TruncatedNegativeBinomial(6.0, 1.0),
            AtLeast(TruncatedNegativeBinomial(5.0, 0.0), 2),
        ],
    )
    def test_shared_against_the_accountant(self, count):
        one = budget(count=count)
        score = one.score_plan.event
        assert one.score_plan.num_records == 120
        assert 0.99 * 4.0 < cost(one.noise_multiplier, count, score=score) <= 4.0
        assert cost(0.99 * one.noise_multiplier, count, score=score) > 4.0
        assert one.tuning_ledger is one.training_ledger

    def test_disjoint_against_the_accountant(self):
        one = budget(records="disjoint", num_validation_records=50)
        assert 0.99 * 4.0 < cost(one.noise_multiplier, Poisson(6.0)) <= 4.0
        event = one.score_plan.event
        scores = epsilon(SelectionEvent(((event, 1),), Poisson(6.0)))
        assert one.score_plan.num_records == 50
        assert 0.99 * 4.0 < scores <= 4.0  # few records: as little noise as possible
        assert one.noise_multiplier < budget().noise_multiplier
        many = budget(records="disjoint", num_validation_records=100_000)
        assert many.score_plan.noise_std == pytest.approx(0.005)

    def test_padding(self):
        one = budget(pad_to=3)
        count = AtMost(Poisson(6.0), 3)
        score = one.score_plan.event
        assert one.charges()[0][1].count == count
        assert 0.99 * 4.0 < cost(one.noise_multiplier, count, score=score) <= 4.0

    def test_renyi(self):
        one = budget(RDP(8.0, 1.5), count=TruncatedNegativeBinomial(3.0, 1.0))
        (_, event) = one.charges()[0]
        assert 0.98 * 1.5 < event.rdp_at(8.0) <= 1.5 * (1 + 1e-9)

    def test_defaults(self):
        one = JointBudget(GUARANTEE, **PLAN)
        assert one.count == recommended_count()
        assert one.score_plan.score_range == (0.0, 1.0)
        assert one.records == "shared"

    def test_summary(self):
        text = str(budget(score_range=(-1.0, 0.0)))
        for words in ("Poisson(mean=6", "8 step(s)", "120 records", "not paid for yet"):
            assert words in text
        text = str(budget(records="disjoint", num_validation_records=40))
        assert "training: epsilon=" in text
        assert "scores: epsilon=" in text

    def test_a_large_delta_warns_once_and_not_in_runs(self):
        with pytest.warns(WeakGuaranteeWarning):
            one = budget(ApproxDP(4.0, 0.01))
        assert one.planned_run().guarantee is None

    @pytest.mark.parametrize(
        ("changed", "match"),
        [
            ({"guarantee": GDP(1.0)}, "selection does not satisfy Gaussian"),
            ({"num_runs": 3, "tuning": "selection"}, "number of runs is random"),
            ({"training_share": 0.5}, "training_share must be None"),
            ({"tuning": "guess"}, "tuning must be one of"),
            ({"num_records": None}, "num_records must be given"),
            ({"records": "disjoint"}, "num_validation_records must be given"),
            ({"records": "some"}, "records must be one of"),
            ({"sample_rate": 1.5}, "sample_rate must be at most 1"),
            ({"steps_per_run": 0}, "steps_per_run"),
            ({"score_noise": -1.0}, "score_noise"),
            ({"score_noise": 1e-6}, "score_noise must be above 0.004"),
            ({"score_noise": 0.0047}, "guarantee cannot be met"),
            (
                {
                    "score_noise": 0.0047,
                    "records": "disjoint",
                    "num_validation_records": 120,
                },
                "score_noise is too small",
            ),
            ({"score_range": (1.0, 0.0)}, "score_range"),
            ({"pad_to": 0}, "pad_to"),
            ({"count": 16}, "count"),
        ],
    )
    def test_refused(self, changed, match):
        with pytest.raises(InvalidArgumentError, match=match):
            budget(**changed)

    def test_what_belongs_to_a_composition(self):
        one = budget()
        for use in (
            lambda: one.tuning_options,
            lambda: one.runs_left,
            lambda: one.charge_run(),
        ):
            with pytest.raises(InvalidArgumentError, match="tuning='composition'"):
                use()
        module = nn.Linear(2, 1, device="cpu")
        with pytest.raises(InvalidArgumentError, match="called on the run"):
            one.make_private(
                module=module,
                optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
                data_loader=loader(),
                max_grad_norm=1.0,
            )


def records():
    inputs = torch.randn(120, 2, generator=seeded(1), device="cpu")
    return inputs, (inputs[:, 0] > 0).long()


def loader():
    return DataLoader(TensorDataset(*records()), batch_size=30)


def parts(run, rate=0.1):
    module = nn.Linear(2, 2)
    return run.make_private(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=rate),
        criterion=nn.CrossEntropyLoss(reduction="none"),
        data_loader=loader(),
        max_grad_norm=1.0,
    )


def train(rate, run, epochs=2):
    module, optimizer, criterion, batches = parts(run, rate)
    for _ in range(epochs):
        for inputs, targets in batches:
            optimizer.zero_grad()
            criterion(module(inputs), targets).backward()
            optimizer.step()
    return module


@torch.no_grad()
def scores(module, num=120):
    inputs, targets = records()
    return (module(inputs).argmax(-1) == targets).double()[:num]


def train_and_score(rate, run):
    module = train(rate, run)
    return run.score(scores(module)), module


class TestSelect:
    pytestmark = trains

    def test_releases_the_best(self):
        one = budget(ApproxDP(40.0, 1e-5), count=Binomial(12, 1.0))
        result = one.select([1e-6, 1.0], train_and_score, generator=seeded(2))
        assert result.x == 1.0
        assert float(scores(result.model).mean()) > 0.8
        assert 0.5 < result.score < 1.3
        assert len(one.training_ledger) == 1
        (entry,) = one.training_ledger.entries
        assert entry.event == one.charges()[0][1]
        assert entry.adjacency == "zero_out"

    def test_from_entropy(self):
        result = budget(count=FIXED).select([0.1, 1.0], train_and_score)
        assert result.certificate.noise == ("system",)
        assert result.certificate.epsilons[1e-5] <= 4.0

    @pytest.mark.parametrize("records", ["shared", "disjoint"])
    def test_certificate(self, records):
        number = {"num_validation_records": 60} if records == "disjoint" else {}
        one = budget(records=records, count=FIXED, **number)

        def function(rate, run):
            return run.score(scores(train(rate, run, epochs=1), 60 if number else 120))

        result = one.select([0.1], function, generator=seeded())
        certificate = result.certificate
        assert 0.99 * 4.0 < certificate.epsilons[1e-5] <= 4.0
        text = str(certificate)
        for words in (
            "other runs were deleted",
            "are disjoint" if records == "disjoint" else "may overlap",
            "running time is not hidden",
            "FOR EXPERIMENTS ONLY",
            "zero_out",
            "score_noise=",
        ):
            assert words in text
        assert Certificate.from_json(certificate.to_json()) == certificate
        assert one.certificate().epsilons == certificate.epsilons
        assert "  paid for" in str(one)
        if records == "disjoint":
            training, tuning = one.training_ledger, one.tuning_ledger
            assert [len(training), len(tuning)] == [1, 1]
            assert certificate.epsilons[1e-5] == max(training.spent(), tuning.spent())
            kinds = [
                type(event)
                for ledger in (training, tuning)
                for event, _ in ledger.entries[0].event.base
            ]
            assert kinds == [PoissonGaussianEvent, GaussianEvent]

    @pytest.mark.parametrize("records", ["shared", "disjoint"])
    def test_pays_once_and_first(self, records, tmp_path):
        number = {"num_validation_records": 120} if records == "disjoint" else {}
        plan = {"records": records, "count": FIXED, "path": tmp_path / "l", **number}
        one = budget(**plan)
        calls = []

        def function(rate, run):
            calls.append(len(one.training_ledger) + len(one.tuning_ledger))
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            one.select([0.1], function)
        assert calls == [2]  # paid before the first run: one entry, seen twice, or two
        for spent in (one, budget(**plan)):  # also after the file is opened again
            with pytest.raises(BudgetExceededError, match="spent by an earlier"):
                spent.select([0.1], function)
        assert len(calls) == 1

    def test_is_reproducible(self):
        found = [
            budget(count=Poisson(3.0)).select(
                [0.1, 0.3, 0.5, 1.0], train_and_score, generator=seeded(5)
            )
            for _ in range(2)
        ]
        assert found[0].score == found[1].score
        weights = [result.model._module.weight for result in found]
        assert torch.equal(*weights)

    def test_in_parallel(self):
        joblib = pytest.importorskip("joblib")
        with joblib.parallel_config("threading"):
            result = budget(count=FIXED).select([0.1, 1.0], train_and_score, n_jobs=2)
        assert result.x in (0.1, 1.0)
        assert float(scores(result.model).mean()) > 0.0

    def test_can_be_sent_to_other_processes(self):
        one = budget()
        function = TrainAndScore(
            train_and_score, one.planned_run(), one.score_plan, is_seeded=True
        )
        assert pickle.loads(pickle.dumps(function)) == function

    def test_the_model_leaves_without_gradients_of_records(self):
        def function(rate, run):
            module, optimizer, criterion, batches = parts(run)
            for inputs, targets in batches:
                optimizer.zero_grad()
                criterion(module(inputs), targets).backward()  # and no step
            kept.append(module)
            return run.score(scores(module)), module

        kept = []
        result = budget(count=FIXED).select([0.1], function)
        assert result.model in kept
        for parameter in [p for module in kept for p in module.parameters()]:
            assert parameter.grad is None
            assert parameter.grad_sample is None

    def test_no_step_after_the_run(self):
        def function(rate, run):
            kept.append(parts(run))
            return run.score(scores(kept[-1][0])), kept[-1][0]

        kept = []
        budget(count=FIXED).select([0.1], function)
        for module, optimizer, criterion, batches in kept:
            before = module._module.weight.clone()
            for inputs, targets in batches:
                criterion(module(inputs), targets).backward()
                with pytest.raises(BudgetExceededError, match="it has ended"):
                    optimizer.step()
            assert torch.equal(module._module.weight, before)

    def test_a_box(self):
        bounds = torch.tensor([[0.01], [1.0]], dtype=torch.float64)
        seen = []

        def function(x, run):
            seen.append(float(x))
            return train_and_score(float(x), run)

        one = budget(count=FIXED)
        result = one.select(
            None, function, bounds=bounds, transform="log", generator=seeded()
        )
        assert len(seen) == 3
        assert float(result.x) in seen

    def test_no_run(self, monkeypatch):
        monkeypatch.setattr(Poisson, "draw", lambda self, source: 0)
        one = budget()
        result = one.select([0.1, 1.0], train_and_score, default=1.0)
        assert (result.x, result.model, result.score) == (1.0, None, None)
        assert len(one.training_ledger) == 1

    def test_padded(self):
        calls = []

        def function(rate, run):
            calls.append(rate)
            return run.score(scores(train(rate, run, epochs=1)))

        budget(count=Poisson(1.0), pad_to=3).select([0.1], function)
        assert len(calls) == 3

    def test_a_saved_model_has_no_data(self):
        result = budget(count=FIXED).select([1.0], train_and_score)
        file = io.BytesIO()
        torch.save(result.model, file)
        file.seek(0)
        loaded = torch.load(file, weights_only=False)
        assert not loaded.passes.has_batches
        assert pickle.loads(pickle.dumps(result.x)) == 1.0


def refuse_second_training(rate, run):
    train(rate, run, epochs=1)
    train(rate, run, epochs=1)


def refuse_second_score(rate, run):
    module = train(rate, run)
    run.score(scores(module))
    return run.score(scores(module))


class TestRuns:
    """What one run may not do, at any of the candidates."""

    pytestmark = trains

    @pytest.mark.parametrize("function", [refuse_second_training, refuse_second_score])
    @pytest.mark.parametrize("records", ["shared", "disjoint"])
    def test_spend_more_than_planned(self, function, records):
        one = budget(count=FIXED, records=records, num_validation_records=120)
        with pytest.raises(BudgetExceededError, match="more than what is left"):
            one.select([0.1], function)

    def test_take_more_steps(self):
        def function(rate, run):
            train(rate, run, epochs=3)

        with pytest.raises(BudgetExceededError, match="All 8 steps"):
            budget(count=FIXED).select([0.1], function)

    @pytest.mark.parametrize(
        "scored",
        [
            lambda module, run: float(scores(module).mean()),  # without noise
            lambda module, run: run.score(scores(module)) + 1e-3,
            lambda module, run: scores(module).mean(),
            lambda module, run: (0.5, module),
            lambda module, run: None,
        ],
    )
    def test_return_another_score(self, scored):
        def function(rate, run):
            return scored(train(rate, run), run)

        with pytest.raises(InvalidArgumentError, match="must return run"):
            budget(count=FIXED).select([0.1], function)

    def test_return_another_model(self):
        def function(rate, run):
            module = nn.Linear(2, 2)
            return run.score(scores(module)), module

        with pytest.raises(InvalidArgumentError, match="train its model with run"):
            budget(count=FIXED).select([0.1], function)

    def test_be_used_later(self):
        runs = []

        def function(rate, run):
            runs.append(run)
            return train_and_score(rate, run)

        budget(count=FIXED).select([0.1], function)
        with pytest.raises(BudgetExceededError, match="a run that has ended"):
            train(0.1, runs[0])

    def test_be_seeded_in_a_selection_that_is_not(self):
        def function(rate, run):
            module = nn.Linear(2, 2)
            run.make_private(
                module=module,
                optimizer=torch.optim.SGD(module.parameters(), lr=rate),
                data_loader=loader(),
                max_grad_norm=1.0,
                generator=seeded(),
            )

        with pytest.raises(InvalidArgumentError, match="noise must not be seeded"):
            budget(count=FIXED).select([0.1], function)
