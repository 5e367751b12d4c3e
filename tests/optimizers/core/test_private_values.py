"""Rows that stay in order: labels of records, loaders that shuffle."""

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from botorch_dp import GIBO, NoisyGradientDescent, PrivateBO, PureDP, RandomSearch
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.optimizers.core import private_values
from botorch_dp.optimizers.core.private_values import PrivateValues
from botorch_dp.privacy import PermuteAndFlipMechanism
from tests.optimizers.problems import DEVICE, DOUBLE, Quadratics, make, seeded, unit_box

N, B, T = 50, 0.3, 10


def orders(shuffle, count=N, seed=9):
    """Yield the orders in which a loader visits the records."""
    generator = seeded(seed)
    first = torch.randperm(count, generator=generator, device=DEVICE)
    yield first
    while True:
        drawn = torch.randperm(count, generator=generator, device=DEVICE)
        yield drawn if shuffle else first


class OneSlope:
    """All records lose nothing but the first, whose loss is steep."""

    def __init__(self, slope):
        self.slope = slope

    def __call__(self, X):
        losses = torch.zeros(N, len(X), **DOUBLE)
        losses[0] = self.slope * X[:, 0]
        return losses


def private_means(slope, *, shuffle, with_ids):
    """Return the means that a run would add noise to, ``T x d``."""
    opt, means = make(d=2, n=N, clip_norm=B, num_steps=T), []

    def release(private_mean):
        means.append(private_mean.clone())
        return torch.zeros_like(private_mean)  # the same public state in all runs

    opt._release = release
    for _, rows in zip(range(T), orders(shuffle), strict=False):
        losses = OneSlope(slope)(opt.ask())
        opt.tell(losses[rows], record_ids=rows if with_ids else None)
    return torch.stack(means)


def test_columns():
    values, losses = PrivateValues(), torch.rand(N, 3, generator=seeded(), **DOUBLE)
    rows = values.append(losses[:, :1]) + values.append(losses[:, 1:])
    columns = values.columns(rows[::-1])
    assert torch.equal(columns, losses.flip(1))
    assert columns.is_contiguous()
    columns.zero_()  # a copy
    assert torch.equal(values.columns(rows), losses)


@pytest.mark.parametrize("chunks", [[N], [20, 17, 13], [1] * N], ids=str)
def test_blocks_are_of_the_same_records(chunks, monkeypatch):
    for name in ("_CPU_BLOCK", "_DEVICE_BLOCK"):
        monkeypatch.setattr(private_values, name, 7)
    values, losses = PrivateValues(), torch.rand(N, 5, generator=seeded(), **DOUBLE)
    rows = torch.tensor(values.append(losses[:, :3])[::-1], device=DEVICE)
    blocks = [*values.blocks(rows, losses[:, 3:].split(chunks))]
    assert max(len(told) for _, told in blocks) <= 7
    kept, told = (
        torch.cat(parts, dim)
        for parts, dim in zip(zip(*blocks, strict=True), (1, 0), strict=True)
    )
    assert torch.equal(kept, losses[:, [2, 1, 0]].mT)
    assert torch.equal(told, losses[:, 3:])


@pytest.mark.parametrize("tell", [lambda losses: losses, lambda L: L.split(64)])
def test_a_run_in_blocks_is_the_same(tell, monkeypatch):
    found = []
    for block in (1000, 7):
        monkeypatch.setattr(private_values, "_CPU_BLOCK", block)
        opt, problem = make(), Quadratics()
        while not opt.done:
            # Losses of some steps are kept, and combined with new ones.
            losses = problem(opt.ask())
            opt.tell(losses if len(opt.history) < 2 else tell(losses))
        found.append(opt.x)
    assert torch.allclose(*found, atol=1e-11)


class TestOrder:
    def test_a_record_counts_as_one(self):
        """Replacing a record moves a mean by 2 B/n at most, if its rows are its own."""
        spent = {}
        for shuffle, with_ids in ((False, False), (True, True), (True, False)):
            low, high = (
                private_means(slope, shuffle=shuffle, with_ids=with_ids)
                for slope in (-1e3, 1e3)
            )
            moved = (high - low).norm(dim=-1) / (2 * B / N)
            spent[shuffle, with_ids] = float(moved.square().mean())  # of mu^2
        assert spent[False, False] <= 1 + 1e-9
        assert spent[True, True] == spent[False, False]
        # What a loader that shuffles does without labels: why this is an assumption.
        assert spent[True, False] > 10

    @pytest.mark.parametrize(
        "label",
        [
            lambda rows: rows,
            lambda rows: rows.tolist(),
            lambda rows: np.asarray(rows.tolist()),
            lambda rows: [f"record {row}" for row in rows.tolist()],
        ],
        ids=["tensor", "list", "numpy", "names"],
    )
    def test_a_shuffled_run_is_the_same_to_the_bit(self, label):
        found = {}
        for shuffle, with_ids in ((False, False), (True, True), (True, False)):
            opt, problem, visits = make(), Quadratics(), orders(shuffle, 200)
            while not opt.done:
                losses, rows = problem(opt.ask()), next(visits)
                ids = label(rows) if with_ids else None
                opt.tell(losses[rows], record_ids=ids)
            found[shuffle, with_ids] = torch.stack([step.x for step in opt.history])
        assert torch.equal(found[True, True], found[False, False])
        assert not torch.equal(found[True, False], found[False, False])

    @pytest.mark.parametrize("with_ids", [False, True])
    def test_records_smoothed_one_by_one(self, with_ids, monkeypatch):
        # A choice by predictions for each record, from its losses in all steps.
        given = []

        def choose(self, private_scores, *, ledger):
            given.append(torch.cat([*private_scores]))
            return torch.tensor(0, device=DEVICE)

        monkeypatch.setattr(PermuteAndFlipMechanism, "release", choose)
        points = torch.rand(40, 2, generator=seeded(1), **DOUBLE)
        for shuffle in (False, True):
            opt = PrivateBO(
                candidates=points,
                num_records=N,
                guarantee=PureDP(1.0),
                num_steps=6,
                loss_range=(0.0, 0.5),
                output="point",
                scoring="per-record",
            )
            problem, visits = Quadratics(n=N, d=2), orders(shuffle)
            while not opt.done:
                losses, rows = problem(opt.ask()), next(visits)
                opt.tell(losses[rows], record_ids=rows if with_ids else None)
        assert torch.equal(*given) == with_ids

    def test_chunks(self):
        # In the order of the first tell they are as good as a tensor.
        found = []
        for chunked in (False, True):
            opt, problem = make(window=0), Quadratics()
            while not opt.done:
                losses = problem(opt.ask())
                told = losses.split(33) if chunked else losses
                opt.tell(told, record_ids=range(200))
            found.append(opt.x)
        assert torch.allclose(*found, atol=1e-12)

    @pytest.mark.parametrize("lazy", [False, True])
    def test_chunks_in_another_order_are_refused(self, lazy):
        opt, problem = make(), Quadratics()
        opt.tell(problem(opt.ask()), record_ids=range(200))
        chunks = problem(opt.ask()).flip(0).split(33)
        told = (lambda X: chunks) if lazy else chunks
        with pytest.raises(InvalidArgumentError, match="order of the first tell"):
            opt.tell(told, record_ids=range(199, -1, -1))
        assert len(opt.ledger) == 1

    @pytest.mark.parametrize(
        ("ids", "message"),
        [
            (range(199), "200 distinct labels, got 199"),
            ([0] * 200, "of which 1 are distinct"),
            (range(1, 201), "those of the first tell"),
            (None, "in every tell or in none"),
            ("x" * 200, "sequence of 200 labels, got a str"),
            (7, "sequence of 200 labels, got a int"),
            ([[row] for row in range(200)], "unhashable"),
        ],
    )
    def test_labels_that_do_not_fit(self, ids, message):
        opt, problem = make(), Quadratics()
        opt.tell(problem(opt.ask()), record_ids=range(200))
        losses = problem(opt.ask())
        with pytest.raises(InvalidArgumentError, match=message):
            opt.tell(losses, record_ids=ids)
        assert len(opt.ledger) == 1
        opt.tell(losses, record_ids=range(200))  # the question still stands
        assert len(opt.ledger) == 2

    def test_labels_that_come_too_late(self):
        opt, problem = make(), Quadratics()
        opt.tell(problem(opt.ask()))
        losses = problem(opt.ask())
        with pytest.raises(InvalidArgumentError, match="some after a tell with none"):
            opt.tell(losses, record_ids=range(200))
        opt.tell(losses)

    def test_a_tell_that_failed_fixes_nothing(self):
        opt, problem = make(), Quadratics()
        losses = problem(opt.ask())
        with pytest.raises(InvalidArgumentError, match="losses must be 200 x"):
            opt.tell(losses[:, :1], record_ids=range(200))
        opt.tell(losses, record_ids=range(200, 400))

    @pytest.mark.parametrize("shape", [(), (200,), (100, 4), (4, 200)])
    def test_a_wrong_shape_in_another_order(self, shape):
        opt, problem = make(), Quadratics()
        opt.tell(problem(opt.ask()), record_ids=range(200))
        opt.ask()
        with pytest.raises(InvalidArgumentError, match="losses must"):
            opt.tell(torch.zeros(shape, **DOUBLE), record_ids=range(199, -1, -1))
        assert len(opt.ledger) == 1

    def test_a_state_starts_anew(self):
        # It holds no losses that others could be combined with, and no labels.
        first, problem = make(), Quadratics()
        names = [f"patient {number}" for number in range(200)]
        first.tell(problem(first.ask()), record_ids=names)
        assert "patient" not in str(first.state_dict())
        first.load_state_dict(first.state_dict())
        first.tell(problem(first.ask()))
        assert len(first.history) == 2

    def test_every_optimizer_takes_labels(self):
        problem, ids = Quadratics(d=2), range(200)
        box = unit_box(2)
        for opt in (GIBO(box, 200, 2), RandomSearch(box, 200, 2, generator=seeded())):
            while not opt.done:
                opt.tell(problem(opt.ask()), record_ids=ids)
        opt = make(d=2, cls=NoisyGradientDescent)
        opt.tell(problem.gradients(opt.ask()[0]), record_ids=ids)

    def test_the_certificate_says_so(self):
        text = str(make().run(Quadratics(), progress=False).certificate)
        assert "row i is the same record in every tell" in text


class Unordered(Sampler):
    """A sampler that nobody knows."""

    def __iter__(self):
        return iter(range(200))


class Stream(IterableDataset):
    def __init__(self, losses):
        self.losses = losses

    def __iter__(self):
        return iter(self.losses)


class TestLoaders:
    """A loader that is told as chunks must not shuffle."""

    @pytest.mark.parametrize("lazy", [False, True])
    @pytest.mark.parametrize(
        "settings",
        [
            {"shuffle": True},
            {"sampler": SubsetRandomSampler(range(200))},
            {"sampler": WeightedRandomSampler([1.0] * 200, 200)},
            {"batch_sampler": BatchSampler(RandomSampler(range(200)), 33, False)},
            {"sampler": Unordered()},
            {"batch_sampler": [[*range(200)]]},
        ],
    )
    def test_refused(self, settings, lazy):
        opt, problem = make(), Quadratics()
        losses = problem(opt.ask())
        if "batch_sampler" not in settings:
            settings = {"batch_size": 33, **settings}
        loader = DataLoader(losses, **settings)
        with pytest.raises(InvalidArgumentError, match=r"may shuffle.*shuffle=False"):
            opt.tell((lambda X: loader) if lazy else loader)
        assert len(opt.ledger) == 0

    @pytest.mark.default_device  # torch's loaders draw a seed on the default device
    @pytest.mark.parametrize(
        "settings",
        [
            {"batch_size": 33},
            {"batch_size": 33, "sampler": SequentialSampler(range(200))},
            {"batch_sampler": BatchSampler(SequentialSampler(range(200)), 33, False)},
        ],
    )
    def test_in_order(self, settings):
        opt, problem = make(window=0), Quadratics()
        other = make(window=0)
        losses = problem(opt.ask())
        opt.tell(DataLoader(losses, **settings))
        other.ask()
        other.tell(losses)
        assert torch.allclose(opt.x, other.x, atol=1e-12)

    @pytest.mark.default_device
    def test_streams_have_no_order_to_check(self):
        opt, problem = make(), Quadratics()
        opt.tell(DataLoader(Stream(problem(opt.ask())), batch_size=33))
        assert len(opt.history) == 1
