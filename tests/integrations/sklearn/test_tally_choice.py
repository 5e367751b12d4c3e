"""A choice by a score of candidates: exact probabilities, budgets, and its state."""

import numpy as np
import pytest
import torch

from botorch_dp import GDP, ApproxDP, Ledger, PureDP
from botorch_dp.exceptions import (
    BudgetExceededError,
    InvalidArgumentError,
    OptimizerStateError,
    WeakGuaranteeWarning,
)
from botorch_dp.integrations.sklearn import f1, precision, recall, roc_auc
from botorch_dp.integrations.sklearn.tally_choice import TallyChoice
from botorch_dp.privacy import (
    LaplaceMechanism,
    PermuteAndFlipMechanism,
    SecureNoise,
    worst_log_ratio,
)
from tests.devices import seeded
from tests.integrations.sklearn.columns import column, records_of
from tests.privacy.mechanisms.test_permute_and_flip import in_polynomial_time

pytestmark = pytest.mark.cpu_only  # models of scikit-learn are scored on the CPU
N = 6
EPSILON = 0.8
CLAIM = PureDP(EPSILON)
SCORINGS = {
    "roc_auc": roc_auc(),
    "counted": roc_auc(class_counts=(4, 2)),
    "f1": f1(floor=4),
    "precision": precision(floor=4),
    "recall": recall(),
}
RESOLVED = {name: each.resolved([0, 0, 1]) for name, each in SCORINGS.items()}


def make(scoring=RESOLVED["roc_auc"], guarantee=CLAIM, n=N, **settings):
    candidates = torch.arange(2.0, dtype=torch.float64, device="cpu").unsqueeze(-1)
    return TallyChoice(
        candidates=candidates,
        scoring=scoring,
        num_records=n,
        guarantee=guarantee,
        **settings,
    )


def tallies(scoring, X, y):
    """Return the tallies of two models, one for each column."""
    records = records_of(X, y)
    found = [scoring.private_losses(column(index), records) for index in (0, 1)]
    return torch.from_numpy(np.stack(found, axis=-1))


def neighbours(name):
    """Return the inputs and classes of two data sets that differ in the first record.

    The first model scores it right in one of them and the second in the other.
    """
    good, bad = [1.0, -1.0], [-1.0, 1.0]
    rest, classes = [[0.0, 0.0]] * (N - 1), [0] * (N - 1)
    if name != "roc_auc":  # a second positive record favours the first model
        rest, classes = [good, *rest[1:]], [1, *classes[1:]]
    return [
        (np.array([first, *rest]), np.array([1, *classes])) for first in (good, bad)
    ]


class TestAudit:
    def losses(self, name, factor=1.0):
        """Return the exact privacy loss of the choice, in both directions."""
        scoring = RESOLVED[name]
        choice, logs = make(scoring), []
        for X, y in neighbours(name):
            found = scoring.utilities(tallies(scoring, X, y).numpy(), N)
            scale = choice._chooser.scale * factor
            logs.append(torch.from_numpy(np.log(in_polynomial_time(found, scale))))
        return worst_log_ratio(*logs)

    @pytest.mark.parametrize("name", RESOLVED)
    def test_the_claim_holds(self, name):
        assert self.losses(name) <= EPSILON * (1 + 1e-12)
        if name != "roc_auc":  # whose worst neighbours leave no other differences
            assert self.losses(name) == pytest.approx(EPSILON, rel=1e-9)

    @pytest.mark.parametrize("name", RESOLVED)
    def test_half_of_the_sensitivity_is_not_enough(self, name):
        assert self.losses(name, 0.5) > EPSILON

    @pytest.mark.parametrize("name", RESOLVED)
    def test_noise_is_drawn_at_that_scale(self, name, monkeypatch):
        scoring, scales = RESOLVED[name], []

        def draw(self, value):
            scales.append(self.scale)
            return torch.zeros((), dtype=torch.long, device="cpu")

        monkeypatch.setattr(PermuteAndFlipMechanism, "_draw", draw)
        choice = make(scoring)
        choice.ask()
        choice.tell(tallies(scoring, *neighbours(name)[0]))
        sizes = {"roc_auc": N - 1, "counted": 4, "f1": 2 / 4, "precision": 1 / 4}
        expected = 2 * sizes.get(name, 1.0) / EPSILON
        assert scales == pytest.approx([expected])


def test_the_better_one_is_chosen():
    scoring = RESOLVED["f1"]
    for better in (0, 1):
        choice = make(scoring, PureDP(200.0))
        assert choice.ask().shape == (2, 1)
        choice.tell(tallies(scoring, *neighbours("roc_auc")[better]))
        assert choice.done
        assert choice.result().x.tolist() == [better]
        assert choice.result().value is None
        assert choice.result().certificate.num_releases == 1


def test_frequencies():
    """Of 300 choices, against the closed form: 4.5 standard errors."""
    scoring, generator = RESOLVED["recall"], seeded(0)
    private = tallies(scoring, *neighbours("recall")[0])
    choice, picked = make(scoring), []
    for _ in range(300):
        run = make(scoring, generator=generator)
        run.ask()
        run.tell(private)
        picked.append(float(run.result().x))
    utilities = scoring.utilities(private.numpy(), N)
    expected = in_polynomial_time(utilities, choice._chooser.scale)[1]
    error = np.sqrt(expected * (1 - expected) / 300)
    assert abs(np.mean(picked) - expected) <= 4.5 * error


class TestBudget:
    @pytest.mark.parametrize("guarantee", [PureDP(1.0), ApproxDP(1.0, 1e-5)])
    @pytest.mark.parametrize("output", ["point", "both"])
    @pytest.mark.parametrize("secure", [False, True])
    def test_all_of_it(self, guarantee, output, secure):
        ledger = Ledger(cap=guarantee)
        choice = make(guarantee=guarantee, output=output, ledger=ledger, secure=secure)
        choice.ask()
        choice.tell(tallies(RESOLVED["roc_auc"], *neighbours("roc_auc")[0]))
        assert (choice.result().value is not None) == (output == "both")
        assert len(ledger) == 1 + (output == "both")
        assert all((e.noise == SecureNoise.name) == secure for e in ledger.entries)
        spent = ledger.spent(1e-5)
        # Up to the grid of secure noise; delta is not used by a choice alone.
        assert 0.5 < spent <= 1.0
        with pytest.raises(OptimizerStateError, match="start a new run"):
            choice.ask()

    def test_refused_before_anything_is_evaluated(self):
        ledger = Ledger(cap=PureDP(EPSILON / 2))
        with pytest.raises(BudgetExceededError):
            make(ledger=ledger).ask()
        assert len(ledger) == 0

    def test_guarantees(self):
        with pytest.raises(InvalidArgumentError, match="guarantee must be a PureDP"):
            make(guarantee=GDP(1.0))
        with pytest.warns(WeakGuaranteeWarning, match="delta above one over"):
            make(guarantee=ApproxDP(1.0, 0.5))

    def test_an_assumption_is_stated(self):
        scoring = RESOLVED["counted"]
        choice = make(scoring)
        choice.ask()
        choice.tell(tallies(scoring, *neighbours("counted")[0]))
        assert "NOT worst case" in str(choice.certificate())
        assert "replaced by one of its own class" in str(choice.certificate())

    def test_shapes(self):
        choice = make()
        choice.ask()
        for bad in (torch.zeros(6, 2, device="cpu"), [torch.zeros(2, 2, device="cpu")]):
            with pytest.raises(InvalidArgumentError, match="2 x 2 tensor"):
                choice.tell(bad)
        assert len(choice.ledger) == 0


class TestState:
    def finished(self, **settings):
        choice = make(output="both", **settings)
        choice.ask()
        choice.tell(tallies(RESOLVED["roc_auc"], *neighbours("roc_auc")[0]))
        return choice

    def test_resumed(self, tmp_path):
        choice = self.finished()
        again = make(output="both")
        again.load_state_dict(choice.state_dict())
        assert again.done
        assert again.result().x.tolist() == choice.result().x.tolist()
        assert again.result().value == choice.result().value
        assert again.result().certificate.epsilons == (
            choice.result().certificate.epsilons
        )

    def test_before_the_choice(self):
        again = make(output="both")
        again.load_state_dict(make(output="both").state_dict())
        assert not again.done
        assert again.ask().shape == (2, 1)

    def test_lost(self, monkeypatch):
        """Paid for and interrupted: done, without a result, and so is its state."""

        def fail(self, value):
            raise KeyboardInterrupt

        monkeypatch.setattr(LaplaceMechanism, "_draw", fail)
        choice = make(output="both")
        choice.ask()
        with pytest.raises(KeyboardInterrupt):
            choice.tell(tallies(RESOLVED["roc_auc"], *neighbours("roc_auc")[0]))
        again = make(output="both")
        again.load_state_dict(choice.state_dict())
        for run in (choice, again):
            assert run.done
            assert run.account.num_charged == 2
            with pytest.raises(OptimizerStateError, match="Nothing was released"):
                run.result()

    def test_refused(self):
        state = self.finished().state_dict()
        bad = [
            {"released": {**state["released"], "index": 2}},
            {"released": {**state["released"], "value": float("nan")}},
            {"charges": state["charges"][:1]},
            {"charges": []},
            {"charges": [], "history": []},
        ]
        for change in bad:
            with pytest.raises(OptimizerStateError):
                make(output="both").load_state_dict({**state, **change})
        for other in (make(), make(RESOLVED["recall"], output="both")):
            with pytest.raises(OptimizerStateError, match="other settings"):
                other.load_state_dict(state)

    def test_holds_no_private_values(self):
        scoring = RESOLVED["roc_auc"]
        private = tallies(scoring, *neighbours("roc_auc")[1])
        choice = make()
        choice.ask()
        choice.tell(private + 0.123456)
        assert "123456" not in repr(choice.state_dict()) + repr(vars(choice))
