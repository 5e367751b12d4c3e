"""What a selection draws from: uniform, of the right dtype, and checked."""

import pytest
import torch
from scipy import stats

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.optimizers.selection.candidates import make_candidates
from botorch_dp.privacy.noise import SeededNoise, SystemNoise

CPU = torch.device("cpu")  # where selections draw


@pytest.fixture
def source(generator):
    return SeededNoise(generator)


class TestList:
    def test_uniform(self, source):
        candidates = make_candidates(["a", "b", "c"], None, "linear")
        drawn = [candidates.draw(source, CPU) for _ in range(3000)]
        counts = [drawn.count(one) for one in "abc"]
        # The test would reject weights (1.2, 0.9, 0.9) with probability 0.99.
        assert stats.chisquare(counts).pvalue > 1e-3

    def test_the_ends(self):
        class Extreme(SystemNoise):
            def uniform(self, shape, device):
                return torch.full(shape, self.value, dtype=torch.float64, device=device)

        extreme = Extreme()
        for size in (1, 3, 1000):
            candidates = make_candidates(range(size), None, "linear")
            for value, expected in ((2.0**-64, 0), (1 - 2.0**-53, size - 1)):
                extreme.value = value
                assert candidates.draw(extreme, CPU) == expected

    def test_first_and_check(self):
        candidates = make_candidates([{"lr": 1}, {"lr": 2}], None, "linear")
        assert candidates.first() == {"lr": 1}
        assert candidates.check("default", "anything") == "anything"
        assert candidates.features() is None
        assert candidates.describe() == "a list of 2"

    def test_every_run_has_a_copy(self):
        items = [{"lr": [1]}]
        candidates = make_candidates(items, None, "linear")
        candidates.first()["lr"].append(2)
        items[0]["lr"].append(3)
        assert candidates.first() == {"lr": [1]}

    @pytest.mark.parametrize("wrong", [[], "abc", {"lr": [1]}, 5])
    def test_wrong(self, wrong):
        with pytest.raises(InvalidArgumentError, match="candidates must be a list"):
            make_candidates(wrong, None, "linear")


class TestRows:
    def test_dtype_and_copies(self, tkwargs, source):
        points = torch.tensor([[1.0, 5.0], [3.0, 5.0]], **tkwargs)
        candidates = make_candidates(points, None, "linear")
        x = candidates.draw(source, CPU)
        assert x.dtype == tkwargs["dtype"]
        assert x.shape == (2,)
        x += 100
        assert candidates.first().tolist() == [1.0, 5.0]
        # A column without any difference has no scale.
        assert candidates.features().tolist() == [[0.0, 0.0], [1.0, 0.0]]

    def test_check(self, tkwargs):
        candidates = make_candidates(torch.zeros(3, 2, **tkwargs), None, "linear")
        assert candidates.check("default", torch.ones(2, **tkwargs)).tolist() == [1, 1]
        with pytest.raises(InvalidArgumentError, match="default must be a 2 tensor"):
            candidates.check("default", torch.ones(3, **tkwargs))
        with pytest.raises(InvalidArgumentError, match="candidates must be finite"):
            make_candidates(torch.full((2, 2), torch.nan, **tkwargs), None, "linear")


class TestBox:
    def test_uniform_in_search_coordinates(self, tkwargs, source):
        bounds = torch.tensor([[1e-4, -1.0], [1.0, 3.0]], **tkwargs)
        candidates = make_candidates(None, bounds, ("log", "identity"))
        X = torch.stack([candidates.draw(source, CPU) for _ in range(2000)])
        assert X.dtype == tkwargs["dtype"]
        for values, low, high in (
            (X[:, 0].double().log10(), -4, 0),
            (X[:, 1].double(), -1, 3),
        ):
            uniform = stats.uniform(low, high - low)
            assert stats.kstest(values.cpu().numpy(), uniform.cdf).pvalue > 1e-3

    def test_first_is_the_centre(self, double):
        bounds = torch.tensor([[1e-4, -1.0], [1.0, 3.0]], **double)
        candidates = make_candidates(None, bounds, ("log", "linear"))
        assert candidates.first().tolist() == pytest.approx([1e-2, 1.0])
        with pytest.raises(InvalidArgumentError, match="within bounds"):
            candidates.check("default", torch.tensor([2.0, 0.0], **double))
        assert "2 dimension" in candidates.describe()

    def test_grid(self, tkwargs):
        bounds = torch.tensor([[1e-4, -1.0], [1.0, 3.0]], **tkwargs)
        box = make_candidates(None, bounds, ("log", "linear"))
        grid, again = box.grid(64), box.grid(64)
        assert grid.size == 64
        features = grid.features()
        assert features.dtype == tkwargs["dtype"]
        assert torch.equal(features, again.features())
        # Each half of each dimension has half of the points.
        assert (features < 0.5).double().mean(dim=0).tolist() == [0.5, 0.5]
        expected = 10 ** (4 * float(features[7, 0]) - 4)
        assert float(grid.at(7)[0]) == pytest.approx(expected, rel=1e-3)


class TestChoice:
    def test_exactly_one(self, double):
        bounds = torch.tensor([[0.0], [1.0]], **double)
        for candidates, box in ((None, None), ([1, 2], bounds)):
            with pytest.raises(InvalidArgumentError, match="and not both"):
                make_candidates(candidates, box, "linear")

    def test_a_list_has_no_coordinates(self):
        with pytest.raises(InvalidArgumentError, match="transform needs bounds"):
            make_candidates([1, 2], None, "log")
