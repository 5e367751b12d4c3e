r"""Bounds on what a history of events costs, from cheap to expensive.

Histories of Gaussian releases compose exactly: the squares of mu add up. For other
histories there are several valid upper bounds: sums of pure epsilons, zero-concentrated
privacy, Renyi privacy at many orders, and the distribution of the total privacy loss
(PLD, :mod:`botorch_dp.privacy.loss_composition`), rounded up. One pure release together
with Gaussian ones has a closed curve (:mod:`botorch_dp.privacy.choice_curves`).
Central-limit approximations, such as that of Opacus's ``gdp`` accountant, are not upper
bounds under sampling and are never used.
"""

import contextlib
import math
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

import numpy as np
from dp_accounting.rdp.rdp_privacy_accountant import compute_delta, compute_epsilon

from botorch_dp.privacy import curves
from botorch_dp.privacy.choice_curves import choice_delta, choice_epsilon
from botorch_dp.privacy.events import PermuteAndFlipEvent, PureEvent
from botorch_dp.privacy.guarantees import GDP, RDP, ApproxDP, Guarantee
from botorch_dp.privacy.history import (
    Groups,
    History,
    pure_and_mu,
    single_event,
    total_cost,
    total_losses,
    total_mu,
    total_rdp,
)
from botorch_dp.privacy.renyi import RDP_ORDERS
from botorch_dp.privacy.spending import Spending

_TYPICAL_DELTA = 1e-6


@lru_cache(maxsize=1024)
def spent_at(groups: Groups, delta: float) -> Spending:
    """Return the smallest known epsilon of a history at ``delta``."""
    return min(epsilon_bounds(groups, delta), key=lambda bound: bound.amount)


def epsilon_bounds(groups: Groups, delta: float) -> Iterator[Spending]:
    """Yield valid upper bounds on epsilon, cheap ones first."""
    history = History.of(groups)
    left, pure = history.delta_left(delta), history.pure_epsilon
    assumed_epsilon, assumed_delta = history.assumed
    if left is None or (left == 0 and pure is None):
        yield Spending(math.inf, "epsilon", "basic composition")
        return
    if groups and pure is not None:
        epsilon = curves.pure_epsilon_at(pure, left / (1 - assumed_delta))
        yield Spending(epsilon, "epsilon", "basic composition")
    if left == 0:
        return
    for bound in _reliable_bounds(history.groups, left):
        if assumed_epsilon == 0:
            yield bound
        else:
            yield replace(
                bound,
                amount=bound.amount + assumed_epsilon,
                method=f"{bound.method}, assumed epsilons added",
            )


def _reliable_bounds(groups: Groups, delta: float) -> Iterator[Spending]:
    """Yield upper bounds on the epsilon of releases that cannot fail."""
    mu = total_mu(groups)
    if mu is not None:
        epsilon = curves.gdp_epsilon(mu, delta) if mu > 0 else 0.0
        yield Spending(epsilon, "epsilon", "exact Gaussian composition")
        return
    single = single_event(groups)
    closed = False
    for epsilon, method in () if single is None else single.bounds_at(delta):
        yield Spending(epsilon, "epsilon", method)
        closed = True
    if closed:  # no other bound is smaller
        return
    choice = pure_and_mu(groups)
    if choice is not None and _has_tight_choice(groups):
        epsilon = choice_epsilon(*choice, delta)
        yield Spending(epsilon, "epsilon", "exact composition of a choice and noise")
        return
    yield from _cheap_bounds(groups, delta)
    losses = total_losses(groups)
    if losses is not None:
        yield Spending(losses.epsilon(delta), "epsilon", "PLD")
    elif len(groups) > 1 and _lacks_renyi(groups):
        parts = [spent_at(frozenset({group}), delta / len(groups)) for group in groups]
        epsilon = sum(part.amount for part in parts)
        yield Spending(epsilon, "epsilon", "basic composition of parts")


def _cheap_bounds(groups: Groups, delta: float) -> Iterator[Spending]:
    """Yield the bounds that need no convolution."""
    mixed = pure_and_mu(groups)
    if mixed is not None:
        epsilon = choice_epsilon(*mixed, delta)
        yield Spending(epsilon, "epsilon", "composition of pure and Gaussian releases")
    rho = total_cost(groups, "zcdp_rho")
    if rho is not None:
        epsilon = curves.zcdp_epsilon(rho, delta)
        yield Spending(epsilon, "epsilon", "zCDP composition")
    renyi, _ = compute_epsilon(RDP_ORDERS, total_rdp(groups), delta)
    yield Spending(float(renyi), "epsilon", "RDP (dp-accounting)")


@lru_cache(maxsize=1024)
def delta_at(groups: Groups, epsilon: float) -> float:
    """Return the smallest known delta of a history at ``epsilon``."""
    history = History.of(groups)
    assumed_epsilon, assumed_delta = history.assumed
    bounds = [1.0]
    if history.pure_epsilon is not None and assumed_delta < 1:
        pure = curves.pure_delta(history.pure_epsilon, epsilon)
        bounds.append((1 - assumed_delta) * pure)
    if epsilon >= assumed_epsilon:
        bounds.extend(_reliable_deltas(history.groups, epsilon - assumed_epsilon))
    return history.delta_with(min(bounds))


def _reliable_deltas(groups: Groups, epsilon: float) -> Iterator[float]:
    """Yield upper bounds on the delta of releases that cannot fail."""
    mu = total_mu(groups)
    if mu is not None:
        yield curves.gdp_delta(mu, epsilon) if mu > 0 else 0.0
        return
    single = single_event(groups)
    closed = None if single is None else single.delta_at(epsilon)
    if closed is not None:
        yield closed
        return
    mixed = pure_and_mu(groups)
    if mixed is not None:
        yield choice_delta(*mixed, epsilon)
        if _has_tight_choice(groups):
            return
    rho = total_cost(groups, "zcdp_rho")
    if rho is not None:
        yield curves.zcdp_delta(rho, epsilon)
    with contextlib.suppress(ValueError):  # it takes logarithms of tiny divergences
        yield float(compute_delta(RDP_ORDERS, total_rdp(groups), epsilon)[0])
    losses = total_losses(groups)
    if losses is not None:
        yield losses.delta(epsilon)
    elif len(groups) > 1 and _lacks_renyi(groups):  # in proportion to their cost
        costs = {
            group: spent_at(frozenset({group}), _TYPICAL_DELTA) for group in groups
        }
        scale = epsilon / max(1e-12, sum(cost.amount for cost in costs.values()))
        yield sum(
            delta_at(frozenset({group}), scale * cost.amount)
            for group, cost in costs.items()
        )


def _lacks_renyi(groups: Groups) -> bool:
    """Return whether some release has no Renyi bound, as selections with a floor."""
    return not np.isfinite(total_rdp(groups)).any()


def _has_tight_choice(groups: Groups) -> bool:
    """Return whether one pure release, known by its epsilon only, joins Gaussian ones.

    The closed form of such a history is exact: no other bound is smaller.
    """
    others = [(event, count) for event, count in groups if event.gdp_mu is None]
    return (
        len(others) == 1
        and others[0][1] == 1
        and type(others[0][0]) in (PureEvent, PermuteAndFlipEvent)
    )


def spent_of_budget(groups: Groups, budget: Guarantee) -> Spending:
    """Return the total of a history in the unit of ``budget``."""
    if isinstance(budget, ApproxDP):
        return spent_at(groups, budget.delta)
    if isinstance(budget, GDP):
        mus = [(event.mu_bound, count) for event, count in groups]
        total = math.sqrt(sum(count * mu**2 for mu, count in mus))
        return Spending(total, "mu", "Gaussian composition")
    if isinstance(budget, RDP):
        costs = [(event.rdp_at(budget.order), count) for event, count in groups]
        total = sum(count * cost for cost, count in costs)
        return Spending(total, "Renyi epsilon", "RDP composition")
    pure = total_cost(groups, "pure_epsilon")
    total = math.inf if pure is None else pure
    return Spending(total, "epsilon", "pure composition")
