"""What a guarantee for records means for a person with several of them.

A person with k records is a group of k units, so a data set with other records of this
person is k steps away. Group privacy bounds what k steps add up to: k times epsilon of
pure privacy and k times mu, but k^2 times rho [Bun2016concentrated]_ (Prop. 1.9), and
for approximate privacy a delta that grows exponentially.

References:
    .. [Bun2016concentrated] M. Bun and T. Steinke. Concentrated Differential Privacy:
        Simplifications, Extensions, and Lower Bounds. TCC 2016.
"""

import math
from typing import TYPE_CHECKING

from scipy.special import expit, ndtr

from botorch_dp.privacy.guarantees import GDP

if TYPE_CHECKING:
    from botorch_dp.privacy.certificate import Certificate


def records_of(certificate: "Certificate") -> int:
    """Return how many units of a certificate one person can be, as far as declared."""
    if certificate.unit != "record":
        return 1
    return certificate.declaration.records_per_person or 1


def person_guess(certificate: "Certificate") -> float:
    """Return the largest probability with which an attacker guesses a person right."""
    k = records_of(certificate)
    bounds = [0.5 + k * (certificate.guess - 0.5), 1.0]
    if certificate.pure_epsilon is not None:
        bounds.append(float(expit(k * certificate.pure_epsilon)))
    if mu := _mu(certificate):
        bounds.append(float(ndtr(k * mu / 2)))
    return min(bounds)


def person_epsilon(certificate: "Certificate", delta: float) -> float:
    """Return the smallest known epsilon of a person at ``delta``, perhaps infinity."""
    k = records_of(certificate)
    if k == 1 and delta in certificate.epsilons:
        return certificate.epsilons[delta]
    bounds = [math.inf]
    if certificate.pure_epsilon is not None:
        bounds.append(k * certificate.pure_epsilon)
    if mu := _mu(certificate):
        bounds.append(GDP(k * mu).to_approx(delta).epsilon)
    if certificate.rho is not None:
        rho = k**2 * certificate.rho
        bounds.append(rho + 2 * math.sqrt(rho * math.log(1 / delta)))
    for own_delta, epsilon in certificate.epsilons.items():
        if _grown(k, epsilon, own_delta) <= delta:
            bounds.append(k * epsilon)
    return min(bounds)


def person_words(certificate: "Certificate") -> str:
    """Return the guarantee of a person, in all parameters that the records have."""
    k = records_of(certificate)
    found = []
    if mu := _mu(certificate):
        found.append(f"GDP(mu={k * mu:.7g})")
    if certificate.pure_epsilon is not None:
        found.append(f"pure epsilon={k * certificate.pure_epsilon:.6g}")
    if certificate.rho is not None:
        found.append(f"rho={k**2 * certificate.rho:.6g}")
    if (delta := certificate.main_delta) is not None:
        epsilon = person_epsilon(certificate, delta)
        found.append(f"epsilon={epsilon:.6g} at delta={delta:.3g}")
    return ", ".join(found)


def _mu(certificate: "Certificate") -> float | None:
    return getattr(certificate.guarantee, "mu", None)


def _grown(k: int, epsilon: float, delta: float) -> float:
    """Return the delta of k steps that each have these: a geometric series."""
    if epsilon == 0:
        return k * delta
    if k * epsilon > 700:  # beyond the largest float
        return math.inf
    return delta * math.expm1(k * epsilon) / math.expm1(epsilon)
