"""The vectorised trainer of benchmarks trains as JointBudget does."""

import math
import statistics

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks import _training_pools as pools
from benchmarks._training_pools import ADAM, SGD, Runs, Setting, Task, batches, train
from botorch_dp import GDP

pytestmark = pytest.mark.default_device
SETTINGS = [
    Setting(0.3, 0.5, SGD),
    Setting(0.05, 100.0, SGD, input_factor=2.0),
    Setting(0.02, 0.1, ADAM, input_factor=0.5),
]


def make_task(num_outputs=3, num_hidden=5, num_records=40, rate=1.0, num_steps=4):
    torch.manual_seed(0)
    inputs = torch.randn(num_records, 6)
    targets = torch.randint(max(2, num_outputs), (num_records,))
    if num_outputs == 1:
        targets = 3.0 * torch.randn(num_records)
    return Task(
        name="small",
        train_inputs=inputs,
        train_targets=targets,
        test_inputs=inputs[:10],
        test_targets=targets[:10],
        num_outputs=num_outputs,
        num_hidden=num_hidden,
        sampling_rate=rate,
        num_steps=num_steps,
        tolerance=2.0,
    )


def module_of(runs, index):
    """Return a module with the weights of a run, in double precision."""
    layers = []
    for weights in runs.weights:
        w = weights[index].double()
        layer = nn.Linear(w.shape[1] - 1, w.shape[0]).double()
        layer.weight.data, layer.bias.data = w[:, :-1].clone(), w[:, -1].clone()
        layers += [layer, nn.Tanh()]
    return nn.Sequential(*layers[:-1])


def loss_of(task):
    if task.num_outputs > 1:
        return nn.functional.cross_entropy
    return lambda outputs, targets: nn.functional.smooth_l1_loss(
        outputs[..., 0], targets.to(outputs)
    )


@pytest.mark.parametrize("num_outputs", [3, 1])
@pytest.mark.parametrize("num_hidden", [5, 0])
class TestRuns:
    def test_gradients_are_those_of_a_loop_over_records(self, num_outputs, num_hidden):
        task = make_task(num_outputs, num_hidden)
        runs = Runs(task, SETTINGS, torch.tensor([1.0, 2.0]), seed=3)
        sums = runs.clipped_sums(task.train_inputs, task.train_targets)
        for index in range(runs.num_runs):
            setting = SETTINGS[index // 2]
            module = module_of(runs, index)
            expected = [torch.zeros_like(p) for p in module.parameters()]
            for x, y in zip(task.train_inputs, task.train_targets, strict=True):
                module.zero_grad()
                outputs = module(setting.input_factor * x.double()[None])
                loss_of(task)(outputs, y[None]).backward()
                norm = math.sqrt(
                    sum(float(p.grad.square().sum()) for p in module.parameters())
                )
                scale = min(1.0, setting.clip_norm / norm)
                for total, p in zip(expected, module.parameters(), strict=True):
                    total += scale * p.grad
            actual = [
                part
                for s in sums
                for part in (s[index, :, :-1].double(), s[index, :, -1].double())
            ]
            for a, b in zip(actual, expected, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)

    @pytest.mark.filterwarnings("ignore")
    def test_trains_as_joint_budget_does(self, num_outputs, num_hidden):
        """With all records in every batch and noise that is next to nothing."""
        opacus = pytest.importorskip("botorch_dp.integrations.opacus")
        task = make_task(num_outputs, num_hidden)
        runs = Runs(task, SETTINGS, torch.tensor([0.0]), seed=3)
        modules = [module_of(runs, i) for i in range(3)]
        for rows in batches(task, seed=3):
            runs.step(task.train_inputs[rows], task.train_targets[rows])
        for index, (module, setting) in enumerate(zip(modules, SETTINGS, strict=True)):
            inputs = setting.input_factor * task.train_inputs.double()
            optimizer = (
                torch.optim.Adam(module.parameters(), lr=setting.learning_rate)
                if setting.optimizer == ADAM
                else torch.optim.SGD(
                    module.parameters(),
                    lr=setting.learning_rate,
                    momentum=pools.MOMENTUM,
                )
            )
            budget = opacus.JointBudget(
                GDP(1e9), num_runs=1, sample_rate=1.0, steps_per_run=task.num_steps
            )
            private, steps, loader = budget.make_private(
                module=module,
                optimizer=optimizer,
                data_loader=DataLoader(
                    TensorDataset(inputs, task.train_targets), batch_size=len(inputs)
                ),
                max_grad_norm=setting.clip_norm,
            )
            for _ in range(task.num_steps):
                for x, y in loader:
                    steps.zero_grad()
                    loss_of(task)(private(x), y).backward()
                    steps.step()
            trained = module_of(runs, index)
            for a, b in zip(module.parameters(), trained.parameters(), strict=True):
                torch.testing.assert_close(a.data, b.data, rtol=1e-3, atol=1e-4)


def test_noise_is_that_of_a_step():
    """One step of SGD from the same weights, with and without noise."""
    task = make_task(num_hidden=200, num_steps=1)
    setting = Setting(0.5, 2.0, SGD)
    runs = Runs(task, [setting], torch.tensor([0.0, 3.0]), seed=0)
    runs.step(task.train_inputs, task.train_targets)
    moved = torch.cat([(w[1] - w[0]).flatten() for w in runs.weights])
    expected = 0.5 * 3.0 * 2.0 / task.num_records
    # The standard error of a standard deviation of N numbers is 1 / sqrt(2 N).
    assert float(moved.std()) == pytest.approx(
        expected, rel=4 / math.sqrt(2 * len(moved))
    )


def test_batches_are_poisson_samples():
    task = make_task(num_records=1000, rate=0.2, num_steps=200)
    sizes = [len(rows) for rows in batches(task, seed=0)]
    assert statistics.mean(sizes) == pytest.approx(200, abs=4 * math.sqrt(160 / 200))
    assert statistics.stdev(sizes) == pytest.approx(math.sqrt(160), rel=0.2)
    first, second = (next(batches(task, seed=s)) for s in (0, 1))
    assert first.tolist() != second.tolist()


def test_chunks_do_not_matter(monkeypatch):
    task = make_task(rate=0.5)
    whole = train(task, SETTINGS, [0.0, 1.0], seed=0)
    monkeypatch.setattr(pools, "_NUM_RUNS", 2)
    monkeypatch.setattr(pools, "_NUM_ROWS", 7)
    parts = train(task, SETTINGS, [0.0, 1.0], seed=0)
    for a, b in zip(whole, parts, strict=True):
        assert a.shape == (3, 2)
        torch.testing.assert_close(a, b)


def test_scores_of_numbers_and_classes():
    numbers = make_task(num_outputs=1)
    outputs = torch.tensor([[[1.0, 4.0, float("nan")]]])
    assert numbers.scores(outputs, torch.tensor([2.0, 0.0, 0.0])).tolist() == [
        [0.5, 0.0, 0.0]
    ]
    classes = make_task(num_outputs=2)
    outputs = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])
    assert classes.scores(outputs, torch.tensor([0, 0])).tolist() == [[1.0, 0.0]]
