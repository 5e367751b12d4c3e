"""Baselines: the same interface, and certificates that say what they are."""

import pytest
import torch

from botorch_dp import GIBO, GPUCB, RandomSearch
from botorch_dp.privacy import Certificate
from tests.optimizers.problems import Quadratics, seeded, unit_box


class TestNotPrivate:
    def cases(self):
        return [
            GIBO(unit_box(2), 100, 4),
            RandomSearch(unit_box(2), 100, 4, batch_size=3, generator=seeded()),
            GPUCB(unit_box(2), 100, 4, batch_size=3, generator=seeded()),
        ]

    @pytest.mark.default_device
    def test_certificates_say_so(self):
        problem = Quadratics(n=100, d=2)
        for opt in self.cases():
            certificate = opt.run(problem, progress=False).certificate
            assert not certificate.private
            assert str(certificate).startswith("NOT PRIVATE")
            assert certificate.guarantee is None
            assert Certificate.from_json(certificate.to_json()) == certificate

    def test_random_search_keeps_the_best(self):
        problem = Quadratics(n=100, d=2)
        opt = RandomSearch(unit_box(2), 100, 10, batch_size=5, generator=seeded())
        seen = []
        while not opt.done:
            X = opt.ask()
            seen.append(X)
            opt.tell(problem(X).split(30))
        X = torch.cat(seen)
        best = X[problem(X).mean(dim=0).argmin()]
        assert torch.equal(opt.result().x, best)
        assert opt.result().num_evaluations == 50

    @pytest.mark.default_device
    def test_gp_ucb_beats_random_search_on_a_quadratic(self):
        problem = Quadratics(n=100, d=2)
        optimum = problem.records.mean(dim=0)
        torch.manual_seed(0)
        ucb = GPUCB(unit_box(2), 100, 8, batch_size=2, generator=seeded())
        random = RandomSearch(unit_box(2), 100, 8, batch_size=2, generator=seeded())
        distances = [
            float((opt.run(problem, progress=False).x - optimum).norm())
            for opt in (ucb, random)
        ]
        assert distances[0] < distances[1]
