"""What a chunk of agents keeps in memory: blocks of factors, then sums."""

import pytest
import torch

from botorch_dp.models import LinearModels
from botorch_dp.models.linear_chunk import BLOCK, LinearChunk
from tests.models.test_linear_models import (
    NOISE,
    History,
    make_features,
    normal,
    posterior,
    uniform,
)


def test_factor_in_several_blocks(generator):
    """Rows come one by one, and several at a time, across blocks of rows."""
    features = make_features(30)
    models = LinearModels(features, 3, noise_variance=NOISE)
    history = History(models, generator)
    for size in [7, 1, 1, 6, 2, 8, 1]:
        history.append(size)
        models.sample(generator=generator)
    assert int(models.counts.max()) == 26
    history.check()


def test_memory_is_bounded(generator):
    """Nothing grows once there are as many observations as features."""

    def size(models):
        chunks = models.state_dict()["chunks"]
        parts = [part for chunk in chunks for part in chunk.values()]
        blocks = [block for chunk in models._chunks for block in chunk.blocks]
        return sum(part.numel() for part in parts + blocks if part is not None)

    history = History(LinearModels(make_features(), 4, noise_variance=NOISE), generator)
    sizes = []
    for _ in range(6):
        history.append(4)
        history.models.sample(generator=generator)
        sizes.append(size(history.models))
    # 4 agents: a count, Phi^T Phi, Phi^T y.
    assert sizes[2:] == [4 * (1 + 12**2 + 12)] * 4
    assert sizes[0] < sizes[1]


def test_memory_of_chunks_at_different_stages(generator):
    """One chunk keeps a factor, another needs none any more."""
    models = LinearModels(make_features(20), 4, noise_variance=NOISE, chunk_size=2)
    history = History(models, generator)
    history.append(12)
    history.append(10, [True, True, False, False])
    assert [len(chunk.blocks) for chunk in models._chunks] == [0, 2]
    history.append(5, [False, False, True, True])
    assert [len(chunk.blocks) for chunk in models._chunks] == [0, 3]
    history.check()


@pytest.fixture
def chunk():
    """Two agents with 20 features, whose owner has allocated all blocks."""
    chunk = LinearChunk(make_features(20), 2, NOISE)
    chunk.blocks = [chunk.inputs.new_empty(2, BLOCK, BLOCK * (i + 1)) for i in range(3)]
    return chunk


def test_factor_is_extended_and_not_made_anew(chunk, generator, monkeypatch):
    sizes, real = [], torch.linalg.cholesky_ex

    def counted(matrix):
        sizes.append(matrix.shape[-1])
        return real(matrix)

    monkeypatch.setattr(torch.linalg, "cholesky_ex", counted)
    everyone = torch.ones(2, dtype=torch.bool, device=chunk.counts.device)
    for size in (10, 3, 1):
        X, y = uniform(generator, 2, size, 2), normal(generator, 2, size)
        chunk.append(X, y, everyone)
        chunk.sample(normal(generator, 2, 40))
        chunk.mean()  # needs no new rows
    assert sizes == [10, 3, 1]
    for agent, mean in enumerate(chunk.mean()):
        X, y = chunk.inputs[agent], chunk.values[agent]
        expected, _ = posterior(chunk.features, X, y)
        torch.testing.assert_close(mean, expected, rtol=0, atol=1e-9)


def test_state_has_no_factors_and_is_a_copy(chunk, generator):
    everyone = torch.ones(2, dtype=torch.bool, device=chunk.counts.device)
    chunk.append(uniform(generator, 2, 4, 2), normal(generator, 2, 4), everyone)
    before, state = chunk.mean(), chunk.state_dict()
    assert state.keys() == {"counts", "inputs", "values", "gram", "moments"}
    other = LinearChunk(chunk.features, 2, NOISE)
    other.load_state_dict(state)
    state["values"].zero_()
    other.blocks = [chunk.inputs.new_empty(2, BLOCK, BLOCK)]
    torch.testing.assert_close(other.mean(), before)
