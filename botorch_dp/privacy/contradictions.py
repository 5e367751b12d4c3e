"""Whether an audit contradicts a certificate.

An audit has seen a test: with probability ``p`` it is right about one data set, and
with probability ``q`` it is wrong about the other. Its lower bound says on which curve
the point (q, p) lies, and the number of samples says how small q can have been. A
certificate bounds p by q, for every test. The two contradict each other if the
certificate allows no point of the curve.

These bounds are symmetric and concave in q, so tests with ``q <= 1 - p`` suffice.
"""

from typing import TYPE_CHECKING

import numpy as np
from scipy.special import ndtr, ndtri

from botorch_dp.privacy.audit import AuditResult, FloatArray

if TYPE_CHECKING:
    from botorch_dp.privacy.certificate import Certificate

_NUM_TESTS = 4001
_ROUNDING = 1e-9
# Probabilities beyond these are smaller than any float.
_LARGEST_MU, _LARGEST_EPSILON = 60.0, 600.0


def contradicting(certificate: "Certificate") -> tuple[AuditResult, ...]:
    """Return the audits of a certificate that contradict it."""
    return tuple(
        audit for audit in certificate.audits if contradicts(certificate, audit)
    )


def contradicts(certificate: "Certificate", audit: AuditResult) -> bool:
    """Return whether no test that a certificate allows has the result of an audit."""
    if not certificate.private or not audit.lower_bound:
        return False
    q, p = _possible_tests(audit)
    return bool((p > _largest_power(certificate, q) * (1 + _ROUNDING)).all())


def _possible_tests(audit: AuditResult) -> tuple[FloatArray, FloatArray]:
    """Return the tests that an audit can have seen, as arrays of q and p."""
    if audit.unit == "mu":
        mu = min(audit.lower_bound, _LARGEST_MU)
        q = _from_smallest(audit, ndtr(-mu / 2))
        return q, ndtr(ndtri(q) + mu)
    ratio = np.exp(min(audit.lower_bound, _LARGEST_EPSILON))
    q = _from_smallest(audit, (1 - audit.delta) / (1 + ratio))
    return q, audit.delta + ratio * q


def _from_smallest(audit: AuditResult, largest: float) -> FloatArray:
    """Return probabilities from the smallest that the samples can have shown."""
    smallest = -np.expm1(np.log1p(-audit.confidence) / audit.num_samples)
    return np.geomspace(min(smallest, largest), largest, _NUM_TESTS)


def _largest_power(certificate: "Certificate", q: FloatArray) -> FloatArray:
    """Return the largest p that every number of a certificate allows."""
    lines = [(0.0, 2 * certificate.guess - 1)]
    lines += [(epsilon, delta) for delta, epsilon in certificate.epsilons.items()]
    if certificate.pure_epsilon is not None:
        lines.append((certificate.pure_epsilon, 0.0))
    found = np.ones_like(q)
    for epsilon, delta in lines:
        ratio = np.exp(min(epsilon, _LARGEST_EPSILON))
        found = np.minimum(found, delta + ratio * q)
    for order, epsilon in certificate.renyi.items():
        log_p = (1 - 1 / order) * (epsilon + np.log(q))
        found = np.minimum(found, np.exp(np.minimum(log_p, 0.0)))
    mu = getattr(certificate.guarantee, "mu", None)
    return found if mu is None else np.minimum(found, ndtr(ndtri(q) + mu))
