"""Selection of one of many candidates by private scores.

References:
    .. [McSherry2007mechanism] F. McSherry and K. Talwar. Mechanism Design via
        Differential Privacy. FOCS 2007.
    .. [Dwork2014foundations] C. Dwork and A. Roth. The Algorithmic Foundations of
        Differential Privacy. 2014. Theorem 3.10.
"""

from collections.abc import Iterable

from torch import Tensor

from botorch_dp.privacy.events import ExponentialEvent, PrivacyEvent
from botorch_dp.privacy.mechanisms.choice import ChoiceMechanism


class ExponentialMechanism(ChoiceMechanism):
    """Chooses one of finitely many candidates, better ones exponentially more often.

    The probability of a candidate is proportional to exp(epsilon * score / (2 Delta)),
    or to exp(epsilon * score / Delta) if the score is monotone
    [McSherry2007mechanism]_. The choice is the largest score after Gumbel noise, so
    nothing is exponentiated.

    :meth:`release` takes a ``batch_shape x m`` tensor of scores, where higher is
    better, or an iterable of such tensors: consecutive chunks of the candidates, which
    need not fit in memory together. It returns a ``batch_shape`` tensor of indices.
    Each batch element is a separate choice and is charged. If a score is not finite,
    which no finite sensitivity allows, the choice is uniform. Only the first chunk of
    an iterator is checked before the charge.

    Args:
        guarantee: The guarantee that one choice has to meet; usually ``PureDP``.
        sensitivity: The largest difference between neighbouring data sets in the score
            of any candidate.
        monotone: Whether one record can only raise all scores or only lower all scores.
            This is true of counts when a record is added or removed, but not when it is
            replaced.
        adjacency: The neighbouring data sets for which the sensitivity is stated.
        generator: A seeded generator for the noise, for experiments only.
        secure: Whether to draw exact Gumbel noise. It needs all candidates in memory.
        unit: What neighbouring data sets differ in.

    Example:
        >>> import torch
        >>> from botorch_dp.privacy import Ledger, PureDP
        >>> mechanism = ExponentialMechanism(PureDP(epsilon=10.0), sensitivity=0.01)
        >>> scores = torch.tensor([0.1, 0.9, 0.3])
        >>> int(mechanism.release(scores, ledger=Ledger()))
        1
    """

    name = "exponential"

    def event(self, size: int = 1) -> PrivacyEvent:
        """Return the cost of one choice, which does not depend on ``size``."""
        del size
        return ExponentialEvent(self.epsilon)

    def _draw(self, private_value: Iterable[Tensor]) -> Tensor:
        return self.noise_source.noisy_argmax(private_value, self.scale)
