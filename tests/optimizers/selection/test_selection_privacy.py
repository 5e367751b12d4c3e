"""Audits of whole selections, each of which rejects a selection that is broken."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from botorch_dp import GDP
from botorch_dp.optimizers.selection import adaptive
from botorch_dp.optimizers.selection.adaptive import Proposals
from botorch_dp.optimizers.selection.private_selection import PrivateSelection
from botorch_dp.privacy import (
    AtMost,
    GaussianEvent,
    Poisson,
    PureEvent,
    TruncatedNegativeBinomial,
    audit_epsilon,
    audit_mu,
)
from tests.optimizers.selection.cases import outcomes


class TestGaussianScores:
    """A run releases x + N(0, 1), where x is 0 or 1: the best score tells most."""

    NUM, DELTA = 1000, 0.05
    COUNT = TruncatedNegativeBinomial(5, 1.0)

    def samples(self, noise=1.0, count=COUNT):
        found = []
        for value in (0.0, 1.0):
            generator = torch.Generator("cpu").manual_seed(int(value) + 3)
            selection = PrivateSelection(
                ["x"], base=GaussianEvent(1.0), count=count, generator=generator
            )
            draw = np.random.default_rng(int(value) + 7).normal
            best = outcomes(
                selection, lambda x, v=value, d=draw: v + noise * d(), self.NUM
            )
            scores = [-9.0 if one is None else one.score for one in best]
            found.append(torch.tensor(scores, dtype=torch.float64, device="cpu"))
        return selection.event, found

    def test_the_claim_is_not_rejected_but_that_of_one_run_is(self):
        # The largest of many scores varies less than one of them. With a Poisson number
        # of 15 runs it is told apart like a pair with mu = 1.8, and 1000 samples, half
        # of which choose the threshold, reject 1.2 with probability 0.97.
        event, samples = self.samples(count=Poisson(15))
        claim = event.epsilon_at(self.DELTA)
        assert not audit_epsilon(*samples, delta=self.DELTA).rejects(claim)
        assert audit_mu(*samples).rejects(GDP(1.2))

    def test_too_little_noise_is_rejected(self):
        event, samples = self.samples()
        claim = event.epsilon_at(self.DELTA)
        assert not audit_epsilon(*samples, delta=self.DELTA).rejects(claim)
        _, samples = self.samples(noise=0.05)  # a score that is released as it is
        assert audit_epsilon(*samples, delta=self.DELTA).rejects(claim)


EPSILON, RATIOS = 3.0, (0.5, 2.0)
COUNT = AtMost(TruncatedNegativeBinomial(2, 1.0), 3)
NUM_MEASURING, NUM_CODES = 2, 3


class Spy(Proposals):
    """Writes what earlier runs measured into the candidate of the next one.

    Candidates 0 and 1 release a private bit by randomized response. The others have a
    high score that is public. The rule measures twice, then proposes the candidate
    that stands for the number of ones.
    """

    def log_weights(self, private_history):
        weights = torch.zeros(5, dtype=torch.float64, device="cpu")
        bits = [score for index, score in private_history if index < NUM_MEASURING]
        if len(bits) < 2:
            weights[:NUM_MEASURING] += 50.0
        else:
            weights[NUM_MEASURING + sum(bit > 0.5 for bit in bits[:2])] += 50.0
        return weights


def scores_of(index, private_bit):
    """Return the possible scores at a candidate, and their probabilities."""
    if index >= NUM_MEASURING:
        return [(2.0, 1.0)]
    true = 1 / (1 + math.exp(-EPSILON))
    return [(float(private_bit), true), (float(1 - private_bit), 1 - true)]


def exact_outputs(rule, private_bit):
    """Return the probability of every released pair of a candidate and a score."""
    counts, outputs = COUNT.probabilities(3), {}

    def follow(history, share):
        if history:
            best = max(score for _, score in history)
            winners = [run for run in history if run[1] == best]
            for winner in winners:
                added = counts[len(history)] * share / len(winners)
                outputs[winner] = outputs.get(winner, 0.0) + added
        if len(history) < 3:
            density = rule.density(history)
            for index, proposed in enumerate((density / density.sum()).tolist()):
                for score, probability in scores_of(index, private_bit):
                    follow([*history, (index, score)], share * proposed * probability)

    follow([], 1.0)
    return outputs


def exact_failures(rule, private_bit):
    """Return the same if a score of 1 is an error, which ends the selection."""
    counts, outputs = COUNT.probabilities(3), {}

    def add(output, share):
        outputs[output] = outputs.get(output, 0.0) + share

    def follow(history, share):
        if history and history[-1][1] == 1.0:
            add(history[-1], counts[len(history) :].sum() * share)
            return
        if history:
            best = max(score for _, score in history)
            winners = [run for run in history if run[1] == best]
            for winner in winners:
                add(winner, counts[len(history)] * share / len(winners))
        if len(history) < 3:
            density = rule.density(history)
            for index, proposed in enumerate((density / density.sum()).tolist()):
                for score, probability in scores_of(index, private_bit):
                    follow([*history, (index, score)], share * proposed * probability)

    follow([], 1.0)
    return outputs


class Arbitrary(Proposals):
    """Large weights that depend on the history in no sensible way."""

    seed = 0

    def log_weights(self, private_history):
        seed = hash((self.seed, tuple(private_history))) % 2**32
        weights = 50 * np.random.default_rng(seed).normal(size=self._num_candidates)
        return torch.tensor(weights, dtype=torch.float64, device="cpu")


def largest_loss(rule, exact=exact_outputs):
    low, high = (exact(rule, bit) for bit in (0, 1))
    for side in (low, high):
        assert sum(side.values()) == pytest.approx(1.0)
    return max(abs(math.log(low[output] / high[output])) for output in low)


class TestProposals:
    """The exact distribution of what is released, for a rule that tries to tell all."""

    def spy(self):
        rule = Spy(RATIOS)
        rule.start(NUM_MEASURING + NUM_CODES, None)
        return rule

    def selection(self, generator=None):
        candidates = torch.arange(5.0, dtype=torch.float64, device="cpu").unsqueeze(-1)
        return PrivateSelection(
            candidates,
            base=PureEvent(EPSILON),
            count=COUNT,
            proposals=Spy(RATIOS),
            generator=generator,
        )

    def test_within_the_limits(self):
        claim = self.selection().event.pure_epsilon
        loss = largest_loss(self.spy())
        assert loss <= claim
        assert loss > EPSILON  # the spy does tell something

    def test_without_limits_the_claim_is_false(self, monkeypatch):
        claim = self.selection().event.pure_epsilon
        monkeypatch.setattr(
            adaptive,
            "bounded_density",
            lambda logs, ratios: logs.softmax(dim=0) * len(logs),
        )
        assert largest_loss(self.spy()) > claim

    def test_errors_cost_no_more_than_results(self):
        claim, losses = self.selection().event.pure_epsilon, []
        for seed in range(10):
            rule = Arbitrary(RATIOS)
            rule.seed = seed
            rule.start(NUM_MEASURING + NUM_CODES, None)
            losses.append(largest_loss(rule, exact_failures))
        assert EPSILON < max(losses) <= claim

    def test_selections_have_this_distribution(self, generator):
        exact = exact_outputs(self.spy(), private_bit=1)
        selection = self.selection(generator)
        noises = np.random.default_rng(1)

        def score(x):
            values, weights = zip(*scores_of(int(x), 1), strict=True)
            return float(noises.choice(values, p=weights))

        found = [(int(one.x), one.score) for one in outcomes(selection, score, 2000)]
        outputs = sorted(exact)
        test = stats.chisquare(
            [found.count(output) for output in outputs],
            [2000 * exact[output] for output in outputs],
        )
        # 2000 draws reject, with power 0.99, an output that is off by 5 points.
        assert test.pvalue > 1e-3
