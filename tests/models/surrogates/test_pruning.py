import pytest
import torch

from botorch_dp.models import (
    PaddedDictionary,
    projection_directions,
)
from botorch_dp.models.surrogates.pruning import (
    append_best,
    prune_by_distance,
    top_direction,
)
from tests.models.surrogates.helpers import (
    DEVICE,
    NOISE,
    RADII,
    distance,
    greedy,
    make_kernel,
    normal,
    posterior,
)


class TestSearch:
    def test_top_direction(self, generator, double):
        A = normal(generator, 7, 4, 4)
        A = A @ A.mT
        v = top_direction(A)
        values, vectors = torch.linalg.eigh(A)
        ones = torch.ones(7, **double)
        torch.testing.assert_close(v.norm(dim=-1), ones)
        quotient = (v.unsqueeze(-2) @ A @ v.unsqueeze(-1)).flatten()
        assert (quotient >= 0.98 * values[:, -1]).all()
        gap = values[:, -2] < 0.8 * values[:, -1]
        cosine = (v * vectors[..., -1]).sum(dim=-1).abs()
        assert gap.any()
        torch.testing.assert_close(cosine[gap], ones[gap], rtol=0, atol=1e-5)
        eye = torch.eye(3, **double)
        torch.testing.assert_close(top_direction(eye), eye[0])

    @pytest.mark.parametrize("center_first", [False, True])
    def test_the_best_of_the_line_is_appended(self, center_first, generator):
        kernel = make_kernel()
        X, x = normal(generator, 4, 3, 2), normal(generator, 4, 2)
        X[1] = x[1] + 0.03 * normal(generator, 3, 2)  # here the value at x is known
        dictionary = PaddedDictionary(kernel, X, noise_variance=NOISE)
        before = dictionary.gradient(x)
        v = top_direction(before.covariance)
        where = torch.tensor([True, True, True, False], device=DEVICE)
        changed = append_best(
            dictionary,
            x,
            before,
            radii=RADII,
            bounds=None,
            where=where,
            center_first=center_first,
        )
        assert torch.equal(changed, where)
        dictionary.compact()
        assert dictionary.num_points.tolist() == [4, 4, 4, 3]
        for i in range(3):
            new = dictionary.points[i, 3]
            if center_first and i != 1:
                assert torch.equal(new, x[i])
                continue
            candidates = [x[i] + s * r * 1.3 * v[i] for s in (1, -1) for r in RADII]
            traces = [
                float(
                    posterior(kernel, torch.cat([X[i], c[None]]), x[i], NOISE)[
                        1
                    ].trace()
                )
                for c in candidates
            ]
            best = candidates[traces.index(min(traces))]
            torch.testing.assert_close(new, best)

    def test_a_search_without_gain_appends_nothing(self, double):
        kernel, x = make_kernel(), torch.zeros(1, 1, **double)
        X = torch.linspace(-1.0, 1.0, 9, **double).reshape(1, 9, 1)
        dictionary = PaddedDictionary(kernel, X)
        changed = append_best(
            dictionary,
            x,
            dictionary.gradient(x),
            radii=RADII,
            bounds=None,
            least_gain=0.999,
        )
        assert not changed.any()
        assert dictionary.num_points.tolist() == [9]

    def test_prune_by_distance_keeps_its_distance_from_the_start(self, generator):
        """Several points go in one call; each is measured from where it began."""
        kernel = make_kernel()
        X, x = 0.7 * normal(generator, 3, 10, 2), 0.1 * normal(generator, 3, 2)
        directions = projection_directions(2, 40, device=DEVICE)
        dictionary = PaddedDictionary(kernel, X, noise_variance=NOISE)
        prune_by_distance(
            dictionary,
            x,
            reference=dictionary.gradient(x).covariance,
            directions=directions,
            limit=0.1,
        )
        dictionary.compact()
        sizes = set()
        for i in range(3):
            _, full = posterior(kernel, X[i], x[i], NOISE)
            expected = greedy(
                X[i],
                lambda D, i=i, full=full: distance(
                    posterior(kernel, D, x[i], NOISE)[1], full, directions
                ),
                0.1,
            )
            n = int(dictionary.num_points[i])
            assert torch.equal(dictionary.points[i, :n], expected)
            sizes.add(n)
        assert len(sizes) > 1
        assert max(sizes) < 9
