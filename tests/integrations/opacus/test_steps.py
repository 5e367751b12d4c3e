"""A run: paid for first, as many steps as planned, and its guarantee, audited."""

import contextlib
import copy
import pickle

import pytest
import torch
from opacus import PrivacyEngine
from torch import nn

from botorch_dp import GDP
from botorch_dp.exceptions import (
    BudgetExceededError,
    InvalidArgumentError,
)
from botorch_dp.privacy import (
    SystemNoise,
    audit_mu,
    mu_audit_power,
)
from tests.integrations.opacus.runs import (
    DOUBLE,
    RENYI,
    draw,
    epochs,
    full_batch,
    is_of_records,
    joint_budget,
    no_noise,
    parts,
    seeded,
    step,
)


@pytest.mark.default_device
@pytest.mark.filterwarnings("ignore:Full backward hook")
class TestTraining:
    def test_a_step_follows_the_clipped_mean(self, monkeypatch, tkwargs):
        no_noise(monkeypatch)
        inputs = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, -9.0]], **tkwargs)
        budget = full_batch(steps_per_run=2)
        module, optimizer, loader = budget.make_private(**parts(inputs, lr=0.5))
        for (batch,) in epochs(loader, 2):
            step(module, optimizer, batch)
        clipped = torch.tensor([[0.6 + 0.3 + 0.0, 0.8 + 0.4 - 1.0]], **tkwargs)
        expected = -2 * 0.5 * clipped / 3
        torch.testing.assert_close(
            module._module.weight.detach(), expected, atol=1e-5, rtol=1e-5
        )
        assert module._module.weight.dtype == tkwargs["dtype"]

    def test_the_noise_is_the_planned_one(self):
        budget = full_batch(GDP(0.5), steps_per_run=2)  # z = 4
        inputs = torch.zeros(3, 40_000)
        module, optimizer, loader = budget.make_private(
            **{**parts(inputs), "max_grad_norm": 0.7}
        )
        step(module, optimizer, next(iter(loader))[0])
        noise = module._module.weight.detach() * 3
        assert float(noise.std()) == pytest.approx(4 * 0.7, rel=0.02)
        assert abs(float(noise.mean())) < 4 * 2.8 / 200

    def test_sums_are_not_divided(self, monkeypatch):
        no_noise(monkeypatch)
        inputs = torch.tensor([[0.5], [0.25]])
        module, optimizer, loader = full_batch().make_private(
            **parts(inputs), loss_reduction="sum"
        )
        module(next(iter(loader))[0]).sum().backward()
        optimizer.step()
        assert module._module.weight.item() == pytest.approx(-0.75)

    def test_a_step_too_many_changes_nothing(self):
        budget = full_batch(steps_per_run=2)
        module, optimizer, loader = budget.make_private(**parts(torch.ones(4, 2)))
        for _ in range(2):
            step(module, optimizer, draw(loader))
        assert optimizer.steps_left == 0
        before = module._module.weight.detach().clone()
        for _ in range(2):
            with pytest.raises(BudgetExceededError, match="All 2 steps"):
                step(module, optimizer, draw(loader))
        assert torch.equal(module._module.weight, before)

    def test_parts_of_a_batch_are_one_step(self, monkeypatch):
        no_noise(monkeypatch)
        budget = full_batch(steps_per_run=1)
        inputs = torch.full((4, 1), 0.5)
        module, optimizer, loader = budget.make_private(**parts(inputs))
        draw(loader)
        optimizer.signal_skip_step(True)
        step(module, optimizer, inputs[:2])
        assert optimizer.steps_left == 1
        optimizer.signal_skip_step(False)
        step(module, optimizer, inputs[2:])
        assert optimizer.steps_left == 0
        assert module._module.weight.item() == pytest.approx(-0.5)

    def test_a_run_too_many_trains_nothing(self):
        budget = full_batch(num_runs=1)
        budget.make_private(**parts(torch.ones(4, 2)))
        another = parts(torch.ones(4, 2))
        with pytest.raises(BudgetExceededError, match="All 1 training runs"):
            budget.make_private(**another)
        assert len(budget.training_ledger) == 1
        assert not hasattr(another["module"], "autograd_grad_sample_hooks")

    def test_an_interrupted_run_has_paid(self):
        budget = full_batch(num_runs=2)

        def interrupted():
            module, optimizer, loader = budget.make_private(**parts(torch.ones(4, 2)))
            step(module, optimizer, next(iter(loader))[0])
            raise KeyboardInterrupt

        with contextlib.suppress(KeyboardInterrupt):
            interrupted()
        (entry,) = budget.training_ledger.entries
        assert (entry.count, budget.runs_left) == (3, 1)

    def test_charged_before_anything_is_drawn(self, monkeypatch):
        order = []
        budget = full_batch()
        for name in ("add_gaussian", "uniform"):
            draw = getattr(SystemNoise, name)

            def spy(self, *args, name=name, draw=draw):
                order.append(name)
                return draw(self, *args)

            monkeypatch.setattr(SystemNoise, name, spy)
        charge = budget.training_ledger.charge

        def spy_charge(*args, **kwargs):
            order.append("charge")
            return charge(*args, **kwargs)

        monkeypatch.setattr(budget.training_ledger, "charge", spy_charge)
        module, optimizer, loader = budget.make_private(**parts(torch.ones(4, 2)))
        for (batch,) in loader:
            step(module, optimizer, batch)
        assert order == ["charge", "uniform", "add_gaussian"]

    @pytest.mark.parametrize("value", [float("nan"), float("inf")])
    def test_a_broken_record_counts_as_zero_and_no_other_does(
        self, monkeypatch, value, tkwargs
    ):
        no_noise(monkeypatch)
        inputs = torch.tensor([[value, -value], [0.6, 0.0]], **tkwargs)
        module, optimizer, loader = full_batch().make_private(**parts(inputs))
        step(module, optimizer, next(iter(loader))[0])
        expected = torch.tensor([[-0.3, 0.0]], **tkwargs)
        torch.testing.assert_close(module._module.weight.detach(), expected)

    def test_a_broken_record_in_a_network(self, monkeypatch):
        no_noise(monkeypatch)
        made = parts(torch.tensor([[float("nan"), 1.0], [0.5, -0.5]]))
        torch.manual_seed(0)
        made["module"] = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2))
        parameters = list(made["module"].parameters())
        made["optimizer"] = torch.optim.SGD(parameters, lr=1.0)
        made["max_grad_norm"] = 0.1
        output = made["module"](torch.tensor([[0.5, -0.5]])).mean()
        gradients = torch.autograd.grad(output, parameters)
        norm = torch.cat([g.flatten() for g in gradients]).norm()
        assert norm > 0.1
        expected = [
            (p - 0.1 * g / norm / 2).detach()
            for p, g in zip(parameters, gradients, strict=True)
        ]
        module, optimizer, loader = full_batch().make_private(**made)
        step(module, optimizer, next(iter(loader))[0])
        moved = torch.cat(
            [(p - e).flatten() for p, e in zip(parameters, expected, strict=True)]
        )
        # By the last bias, whose gradient is a number, and by no more than B / n.
        assert 0.0 < moved.norm() <= 0.1 / 2 * (1 + 1e-4)

    def test_gradients_of_one_batch_once(self):
        budget = full_batch()
        module, optimizer, loader = budget.make_private(**parts(torch.ones(4, 2)))
        step(module, optimizer, draw(loader))
        with pytest.raises(InvalidArgumentError, match=r"call backward\(\) before"):
            optimizer.step()
        batch = draw(loader)
        module(batch).mean().backward()
        with pytest.raises(ValueError, match="grad accumulation"):
            module(batch).mean().backward()
        optimizer.zero_grad()
        module.allow_grad_accumulation()
        for _ in range(2):
            module(batch).mean().backward()
        with pytest.raises(InvalidArgumentError, match="exactly one Poisson batch"):
            optimizer.step()
        assert optimizer.steps_left == 2
        step(module, optimizer, draw(loader))

    def test_gradients_are_counted_once(self):
        module, optimizer, loader = full_batch().make_private(**parts(torch.ones(4, 2)))
        module(next(iter(loader))[0]).mean().backward()
        optimizer.clip_and_accumulate()
        with pytest.raises(InvalidArgumentError, match=r"call backward\(\) before"):
            optimizer.step()
        assert optimizer._sums == {}

    def test_nothing_need_be_cleared(self):
        found = []
        for clears in (True, False):
            budget = full_batch(steps_per_run=3)
            made = parts(torch.rand(4, 2, generator=seeded()), lr=0.1)
            module, optimizer, loader = budget.make_private(**made, generator=seeded(1))
            for (batch,) in epochs(loader, 3):
                if clears:
                    optimizer.zero_grad()
                module(batch).square().mean().backward()
                optimizer.step()
            found.append(module._module.weight.detach().clone())
        assert torch.equal(*found)

    @pytest.mark.parametrize("name", ["noise_multiplier", "max_grad_norm"])
    def test_the_plan_must_stay(self, name):
        module, optimizer, loader = full_batch().make_private(**parts(torch.ones(4, 2)))
        before = module._module.weight.detach().clone()
        draw(loader)
        optimizer.signal_skip_step(True)
        step(module, optimizer, torch.ones(2, 2))
        setattr(optimizer, name, getattr(optimizer, name) / 2)
        with pytest.raises(InvalidArgumentError, match=f"{name} must stay"):
            step(module, optimizer, torch.ones(2, 2))
        assert torch.equal(module._module.weight, before)
        assert optimizer.steps_left == 3

    @pytest.mark.parametrize(
        "copied", [copy.copy, copy.deepcopy, pickle.dumps], ids=lambda f: f.__name__
    )
    def test_an_optimizer_is_one(self, copied):
        _, optimizer, _ = full_batch().make_private(**parts(torch.ones(4, 2)))
        with pytest.raises(InvalidArgumentError, match="were not paid for"):
            copied(optimizer)

    def test_schedules_and_hooks(self):
        module, optimizer, loader = full_batch().make_private(**parts(torch.ones(4, 2)))
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
        seen = []
        optimizer.attach_step_hook(
            lambda o: seen.append(
                (o.accumulated_iterations, *vars(o.params[0]).items())
            )
        )
        for (batch,) in epochs(loader, 2):
            step(module, optimizer, batch)
            schedule.step()
        assert optimizer.param_groups[0]["lr"] == 0.25
        assert len(seen) == 2
        for iterations, *attributes in seen:
            assert iterations == 1
            assert not any(is_of_records(value) for _, value in attributes)

    def test_seeded(self):
        found = []
        for seed in (0, 0, 1):
            budget = joint_budget(RENYI, num_runs=1, sample_rate=0.25, steps_per_run=4)
            made = parts(torch.rand(20, 2, generator=seeded()), batches=4)
            module, optimizer, loader = budget.make_private(
                **made, generator=seeded(seed)
            )
            for (batch,) in loader:
                step(module, optimizer, batch)
            found.append(module._module.weight.detach().clone())
            assert budget.certificate().for_experiments_only
        assert torch.equal(found[0], found[1])
        assert not torch.equal(found[0], found[2])

    def test_not_seeded(self):
        budget = full_batch()
        budget.make_private(**parts(torch.ones(4, 2)))
        assert budget.certificate().noise == ("system",)

    def test_opacus_engine_itself(self):
        # The way for what make_private does not offer.
        budget = full_batch()
        budget.charge_run()
        with pytest.warns(UserWarning, match="Secure RNG"):
            engine = PrivacyEngine(accountant="botorch_dp")
        module, optimizer, loader = engine.make_private(
            **parts(torch.ones(4, 2)), noise_multiplier=budget.noise_multiplier
        )
        for (batch,) in [*loader, *loader, *loader]:
            step(module, optimizer, batch)
        assert engine.accountant.groups() == budget.training_accountant(1).groups()


RUNS = 200


def trained_weights(first, seed, halved=False):
    """Where runs of two steps end, in the direction in which two data sets differ."""
    generator, ends = seeded(seed), []
    for _ in range(RUNS):
        budget = full_batch(GDP(1.0), num_runs=1, steps_per_run=2)
        inputs = torch.zeros(5, 1)
        inputs[0] = first
        module, optimizer, loader = budget.make_private(
            **parts(inputs), generator=generator
        )
        if halved:
            source = optimizer._noise_source
            draw = source.add_gaussian
            source.add_gaussian = lambda value, std, draw=draw: draw(value, std / 2)
        for (batch,) in epochs(loader, 2):
            step(module, optimizer, batch)
        ends.append(-5 * module._module.weight.item() / 2)
    return torch.tensor(ends, **DOUBLE)


@pytest.mark.default_device
@pytest.mark.filterwarnings("ignore:Full backward hook")
class TestAuditOfTraining:
    """A record is absent (its gradient zero), or has one that is clipped to 1."""

    def test_power(self):
        assert mu_audit_power(true_mu=2.0, claimed_mu=1.0, num_samples=RUNS) > 0.999

    def test_whole_runs(self):
        ends = trained_weights(0.0, 1), trained_weights(3.0, 2)
        result = audit_mu(*ends, threshold=0.5)
        assert not result.rejects(GDP(1.0))
        assert result.rejects(GDP(0.25))  # the audit sees what is there

    def test_halved_noise_is_refuted(self):
        ends = trained_weights(0.0, 3, True), trained_weights(3.0, 4, True)
        assert audit_mu(*ends, threshold=0.5).rejects(GDP(1.0))
