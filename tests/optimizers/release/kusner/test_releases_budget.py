"""What the published releases are charged for, and certified as."""

import math

import pytest

from botorch_dp import ApproxDP, Certificate, Ledger, PrivateBO, PureDP
from botorch_dp.exceptions import (
    BudgetExceededError,
    OptimizerStateError,
)
from botorch_dp.privacy import (
    AssumedEvent,
    LaplaceEvent,
    PureEvent,
    SeededNoise,
)
from tests.optimizers.problems import seeded
from tests.optimizers.release.kusner.problems import (
    BUDGET,
    HALF,
    RECORDS,
    RELEASES,
    RHO,
    WHOLE,
    T,
    make,
    problem_of,
    run,
)
from tests.optimizers.release.problems import candidates


class TestBudget:
    @pytest.mark.parametrize("release", ["kusner", "kusner-noise-free"])
    @pytest.mark.parametrize(
        ("output", "mechanisms", "epsilon", "delta"),
        [
            ("both", ["exponential", "laplace"], 0.5, HALF),
            ("point", ["exponential"], 1.0, WHOLE),
            ("value", ["laplace"], 1.0, WHOLE),
        ],
    )
    def test_charges(self, drawn, release, output, mechanisms, epsilon, delta):
        opt = make(release, output=output)
        result = run(opt)
        entries = opt.ledger.entries
        assert [entry.mechanism for entry in entries] == mechanisms
        assert len(drawn) == len(mechanisms)
        for entry in entries:
            assert entry.count == 1
            assert isinstance(entry.event, AssumedEvent)
            assert math.isclose(entry.event.epsilon, epsilon)
            assert math.isclose(entry.event.delta, delta)
        assert math.fsum(entry.event.delta for entry in entries) <= BUDGET.delta
        assert opt.ledger.accountant().within(BUDGET)
        assert not opt.ledger.accountant().within(ApproxDP(0.9, BUDGET.delta))
        assert not opt.ledger.accountant().within(ApproxDP(1.0, 0.9 * BUDGET.delta))
        assert (result.value is None) == (output == "point")
        assert bool(result.x.isnan().any()) == (output == "value")

    def test_lipschitz_is_pure(self):
        opt = make("lipschitz")
        run(opt)
        (entry,) = opt.ledger.entries
        assert entry.event == LaplaceEvent(1.0)
        assert opt.ledger.accountant().within(PureDP(1.0))

    @pytest.mark.parametrize("release", RELEASES)
    def test_nothing_is_charged_before_the_end(self, release):
        opt, problem = make(release), problem_of(release)
        for _ in range(T - 1):
            opt.tell(problem(opt.ask()))
        with pytest.raises(OptimizerStateError, match="Nothing is released"):
            opt.result()
        assert len(opt.ledger) == 0

    @pytest.mark.parametrize("release", RELEASES)
    def test_charged_before_noise_is_drawn(self, monkeypatch, release):
        order, opt = [], make(release)
        charge = opt.ledger.charge

        def spy_charge(event, **kwargs):
            order.append("charge")
            return charge(event, **kwargs)

        def spy(draw):
            def spied(*args):
                order.append("draw")
                return draw(*args)

            return spied

        monkeypatch.setattr(opt.ledger, "charge", spy_charge)
        for name in ("noisy_argmax", "add_laplace"):
            monkeypatch.setattr(SeededNoise, name, spy(getattr(SeededNoise, name)))
        run(opt)
        assert order == ["charge", "draw"] * (1 if release == "lipschitz" else 2)

    def test_a_budget_that_another_run_has_spent(self, drawn):
        ledger = Ledger(cap=BUDGET)
        run(make(ledger=ledger))
        drawn.clear()
        evaluated = []
        with pytest.raises(BudgetExceededError, match="would bring it to"):
            make(ledger=ledger).run(evaluated.append, progress=False)
        assert len(ledger) == 2
        assert not drawn
        assert not evaluated

    @pytest.mark.parametrize("release", RELEASES)
    @pytest.mark.parametrize("secure", [False, True])
    def test_the_plan_is_what_is_charged(self, release, secure):
        noise = {"secure": True, "generator": None} if secure else {}
        opt = make(release, **noise)
        planned = opt.planned_releases()
        run(opt)
        assert [(entry.event, entry.count) for entry in opt.ledger.entries] == planned
        assert opt.planned_releases() == planned

    @pytest.mark.parametrize("release", RELEASES)
    def test_a_budget_that_does_not_suffice(self, release):
        kinds = {"lipschitz": PureDP(0.99)}
        ledger = Ledger(cap=kinds.get(release, ApproxDP(0.99, 0.1)))
        evaluated = []
        with pytest.raises(BudgetExceededError, match="would bring it to"):
            make(release, ledger=ledger).run(evaluated.append, progress=False)
        assert not evaluated
        assert len(ledger) == 0

    def test_the_point_is_not_drawn_if_the_value_cannot_be(self, drawn):
        ledger = Ledger(cap=ApproxDP(1.5, 0.2))
        opt, problem = make(num_steps=1, ledger=ledger), problem_of("kusner")
        losses = problem(opt.ask())
        ledger.charge(PureEvent(0.9))
        assert ledger.allows(opt.planned_releases()[0][0])  # the point alone
        with pytest.raises(BudgetExceededError):
            opt.tell(losses)
        assert not drawn
        assert len(ledger) == 1

    @pytest.mark.parametrize("release", RELEASES)
    def test_secure_noise(self, release):
        pytest.importorskip("opendp")
        opt = make(release, generator=None, secure=True)
        result = run(opt)
        assert result.certificate.noise == ("secure",)
        assert opt.ledger.accountant().within(opt.guarantee)


class TestCertificate:
    @pytest.mark.parametrize("release", ["kusner", "kusner-noise-free"])
    def test_of_a_gaussian_process(self, release):
        text = str(run(make(release)).certificate)
        assert "GP-ASSUMPTION PRIVACY" in text
        assert "not plain differential privacy" in text
        assert "for a given pair of data sets nothing is promised" in text
        assert f"correlation={RHO}" in text
        assert f"release={release}" in text
        assert "worst case over all" not in text
        assert "replace_one" in text

    def test_of_a_linear_model(self):
        text = str(run(make("lipschitz")).certificate)
        for words in ("regularized convex 1-Lipschitz", "worst case otherwise"):
            assert words in text
        assert "lipschitz=0.5" in text
        assert "GP-ASSUMPTION" not in text

    @pytest.mark.parametrize("release", RELEASES)
    def test_of_the_ledger_alone(self, release):
        # Whoever else certifies what this ledger was charged has no other source.
        opt = make(release)
        run(opt)
        text = str(Certificate.from_ledger(opt.ledger))
        assert "NOT worst case: some releases hold assuming" in text
        assert "worst case over all" not in text

    def test_of_a_stable_release(self):
        opt = PrivateBO(
            candidates=candidates(),
            num_records=RECORDS,
            guarantee=PureDP(1.0),
            num_steps=T,
            loss_range=(0.0, 1.0),
            generator=seeded(),
        )
        text = str(run(opt).certificate)
        assert "worst case over all neighbouring data sets" in text
        assert "GP-ASSUMPTION" not in text
