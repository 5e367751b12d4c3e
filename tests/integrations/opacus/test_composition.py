"""The charges, files and certificate of a joint budget, and a run of everything."""

import math

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from botorch_dp import DPGIBO, GDP, ApproxDP, Certificate
from botorch_dp.exceptions import (
    BudgetExceededError,
    InvalidArgumentError,
    LedgerError,
)
from botorch_dp.privacy import GaussianEvent, SeededNoise
from tests.integrations.opacus.runs import (
    DOUBLE,
    RENYI,
    full_batch,
    joint_budget,
    seeded,
    spend_on_tuning,
)


class TestChargedRuns:
    def test_no_more_than_planned(self):
        # Shared records: the cap would allow it, but that is for tuning.
        budget = full_batch(records="shared", num_runs=2)
        budget.charge_run()
        assert budget.runs_left == 1
        budget.charge_run(noise="system")
        with pytest.raises(BudgetExceededError, match="All 2 training runs"):
            budget.charge_run()
        assert budget.runs_left == 0
        first, second = budget.training_ledger.entries
        assert (first.noise, second.noise) == ("seeded", "system")
        assert (first.count, first.adjacency) == (3, "zero_out")
        spend_on_tuning(budget)

    def test_unknown_noise(self):
        with pytest.raises(InvalidArgumentError, match="noise must be one of"):
            full_batch().charge_run(noise="secure")

    @pytest.mark.parametrize("records", ["disjoint", "shared"])
    def test_files_remember(self, records, tmp_path):
        path = tmp_path / "ledger"
        budget = full_batch(records=records, path=path)
        budget.charge_run()
        spend_on_tuning(budget)
        again = full_batch(records=records, path=path)
        assert again.runs_left == 1
        assert again.certificate().epsilons == budget.certificate().epsilons
        assert (again.training_ledger is again.tuning_ledger) == (records == "shared")
        with pytest.raises(LedgerError, match="has the cap"):
            full_batch(GDP(2.0), records=records, path=path)

    @pytest.mark.parametrize("records", ["disjoint", "shared"])
    def test_files_of_the_other_kind_of_records(self, records, tmp_path):
        path = tmp_path / "ledger"
        full_batch(records=records, path=path).charge_run()
        before = sorted(tmp_path.iterdir())
        other = {"disjoint": "shared", "shared": "disjoint"}[records]
        with pytest.raises(InvalidArgumentError, match=f"new for records='{other}"):
            full_batch(records=other, path=path)
        assert sorted(tmp_path.iterdir()) == before
        assert full_batch(records=records, path=path).runs_left == 1

    @pytest.mark.parametrize("records", ["disjoint", "shared"])
    @pytest.mark.parametrize(
        "changed",
        [
            {"num_runs": 3},
            {"num_runs": 3, "steps_per_run": 2},  # the same noise
            {"sample_rate": 0.5},
        ],
    )
    def test_files_of_another_plan(self, records, changed, tmp_path):
        plan = {"num_runs": 2, "sample_rate": 1.0, "steps_per_run": 3}
        arguments = {"records": records, "path": tmp_path / "ledger"}
        budget = joint_budget(RENYI, **plan, **arguments)
        joint_budget(RENYI, **{**plan, **changed}, **arguments)  # nothing paid yet
        spend_on_tuning(budget)
        budget.charge_run()
        with pytest.raises(InvalidArgumentError, match="path must belong to the same"):
            joint_budget(RENYI, **{**plan, **changed}, **arguments)
        assert joint_budget(RENYI, **plan, **arguments).runs_left == 1

    def test_files_of_nearly_the_same_plan(self, tmp_path):
        path = tmp_path / "ledger"
        other = full_batch(path=path)
        other.noise_multiplier *= 1.001
        other.charge_run()
        with pytest.raises(InvalidArgumentError, match="path must belong to the same"):
            full_batch(path=path)

    def test_files_of_the_same_plan_on_another_machine(self, tmp_path):
        path = tmp_path / "ledger"
        full_batch(path=path).charge_run()
        elsewhere = full_batch(path=path)
        elsewhere.noise_multiplier *= 1 + 1e-12
        elsewhere.charge_run()
        assert full_batch(path=path).runs_left == 0

    def test_summary(self):
        budget = full_batch(ApproxDP(2.0, 1e-5), num_runs=16, records="shared")
        budget.charge_run()
        text = str(budget)
        one = budget.training_accountant(1).get_epsilon(1e-5)
        for words in (
            "shared records",
            "training (50%)",
            f"{one:.6g} for one",
            f"noise multiplier {budget.noise_multiplier:.6g}",
            "together: epsilon=2, composed",
            "paid for: 1 of 16",
        ):
            assert words in text
        disjoint = str(full_batch())
        assert f"together: epsilon={GDP(1.0).epsilon(1e-5):.6g}" in disjoint
        assert "the larger of the two" in disjoint


class TestCertificate:
    def test_disjoint_is_the_larger(self):
        budget = full_batch(GDP(1.0), num_runs=4)
        with pytest.raises(InvalidArgumentError, match="at least one charge"):
            budget.certificate()
        spend_on_tuning(budget)
        assert math.isclose(budget.certificate().guarantee.mu, 1.0)
        budget.charge_run()
        certificate = budget.certificate()
        assert math.isclose(certificate.guarantee.mu, 1.0)  # not sqrt(1 + 1/4)
        assert certificate.num_releases == 3 + 3
        for delta, epsilon in certificate.epsilons.items():
            assert math.isclose(epsilon, GDP(1.0).epsilon(delta))

    def test_disjoint_noise_is_that_of_both(self):
        budget = full_batch(GDP(1.0), num_runs=4)
        budget.charge_run(noise="system")
        assert not budget.certificate().for_experiments_only
        spend_on_tuning(budget)  # seeded
        assert budget.certificate().noise == ("seeded", "system")
        assert budget.certificate().for_experiments_only

    def test_disjoint_before_tuning(self):
        budget = full_batch(GDP(1.0), num_runs=4)
        budget.charge_run()
        assert math.isclose(budget.certificate().guarantee.mu, 0.5)

    def test_of_sampled_runs(self):
        budget = joint_budget(
            ApproxDP(3.0, 1e-6), num_runs=1, sample_rate=0.5, steps_per_run=5
        )
        spend_on_tuning(budget)
        budget.charge_run()
        certificate = budget.certificate()
        assert certificate.guarantee is None
        parts = [budget.training_ledger.spent(), budget.tuning_ledger.spent()]
        assert certificate.epsilons[1e-6] == max(parts)
        assert "PLD" in certificate.accountant
        assert Certificate.from_json(certificate.to_json()) == certificate

    def test_shared_adds_up(self):
        budget = full_batch(GDP(1.0), num_runs=4, records="shared")
        budget.charge_run()
        assert math.isclose(budget.certificate().guarantee.mu, math.sqrt(1 / 8))
        spend_on_tuning(budget)
        expected = math.sqrt(1 / 8 + 1 / 2)
        assert math.isclose(budget.certificate().guarantee.mu, expected)

    def test_words(self):
        for records, words in (("disjoint", "are disjoint"), ("shared", "added up")):
            budget = full_batch(records=records)
            budget.charge_run()
            spend_on_tuning(budget)
            text = str(budget.certificate())
            for part in (words, "zero_out", "FOR EXPERIMENTS ONLY", "may be published"):
                assert part in text
            assert "training_share=" in text

    def test_tuning_for_other_neighbours(self):
        budget = full_batch()
        budget.charge_run()
        budget.tuning_ledger.charge(GaussianEvent(10.0))
        with pytest.raises(InvalidArgumentError, match=r"'zero_out'.*'replace_one'"):
            budget.certificate()


@pytest.mark.default_device
@pytest.mark.filterwarnings("ignore:Full backward hook")
@pytest.mark.parametrize("records", ["disjoint", "shared"])
def test_train_and_tune(records):
    generator = seeded(5)
    inputs = torch.randn(120, 3, generator=generator)
    labels = (inputs[:, 0] > 0).long()
    half = slice(60, None) if records == "disjoint" else slice(None)
    used = slice(0, 60) if records == "disjoint" else slice(None)
    dataset = TensorDataset(inputs[used], labels[used])
    guarantee = ApproxDP(4.0, 1e-5)
    budget = joint_budget(
        guarantee, num_runs=5, sample_rate=0.25, steps_per_run=8, records=records
    )

    def train(rate):
        module = nn.Linear(3, 2)
        module, optimizer, loader = budget.make_private(
            module=module,
            optimizer=torch.optim.SGD(module.parameters(), lr=float(rate)),
            data_loader=DataLoader(dataset, batch_size=len(dataset) // 4),
            max_grad_norm=1.0,
            generator=generator,
        )
        for _ in range(2):
            for batch, targets in loader:
                optimizer.zero_grad()
                nn.functional.cross_entropy(module(batch), targets).backward()
                optimizer.step()
        return module

    @torch.no_grad()
    def losses(X):
        with torch.enable_grad():
            modules = [train(x) for x in X]
        return torch.stack(
            [
                nn.functional.cross_entropy(
                    module(inputs[half]), labels[half], reduction="none"
                )
                for module in modules
            ],
            dim=-1,
        )

    bounds = torch.tensor([[1e-2], [10.0]], **DOUBLE)
    tuner = DPGIBO(
        bounds,
        len(inputs[half]),
        num_steps=2,
        clip_norm=1.0,
        transform="log",
        generator=generator,
        **budget.tuning_options,
    )
    result = tuner.run(losses, progress=False)
    train(result.x)
    assert budget.runs_left == 0
    assert len(budget.training_ledger) == (5 if records == "disjoint" else 7)
    certificate = budget.certificate()
    assert 0.99 * 4.0 < certificate.epsilons[1e-5] <= 4.0 * (1 + 1e-9)
    assert certificate.num_releases == 5 * 8 + 2
    assert certificate.noise == (SeededNoise.name,)
    with pytest.raises(BudgetExceededError, match="All 5 training runs"):
        train(result.x)
