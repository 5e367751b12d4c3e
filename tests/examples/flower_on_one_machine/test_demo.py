"""The agents' score functions."""

import torch

from examples.flower_on_one_machine.demo import accuracies, score


def test_peaks_are_similar_but_not_the_same(double):
    axis = torch.linspace(0.0, 1.0, 101, **double)
    points = torch.cartesian_prod(axis, axis)
    best = torch.stack([points[score(agent, points).argmax()] for agent in range(4)])
    assert len(best.unique(dim=0)) == 4
    center = torch.tensor([0.62, 0.38], **double)
    assert (best - center).abs().max() < 0.06


def test_best_rates_are_similar():
    candidates = [{"rate": 10.0**exponent} for exponent in range(-4, 3)]
    for agent in range(8):
        scores = accuracies(agent, candidates)
        assert scores.index(max(scores)) == 3
