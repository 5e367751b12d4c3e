"""Selection of one of many candidates by private scores, with the least regret.

References:
    .. [McKenna2020permute] R. McKenna and D. Sheldon. Permute-and-Flip: A New
        Mechanism for Differentially Private Selection. NeurIPS 2020.
    .. [Ding2021permute] Z. Ding, D. Kifer, S. M. Saghaian N. E., T. Steinke, Y. Wang,
        Y. Xiao and D. Zhang. The Permute-and-Flip Mechanism Is Identical to
        Report-Noisy-Max with Exponential Noise. 2021.
"""

from collections.abc import Iterable

from torch import Tensor

from botorch_dp.privacy.events import PermuteAndFlipEvent, PrivacyEvent
from botorch_dp.privacy.mechanisms.choice import ChoiceMechanism


class PermuteAndFlipMechanism(ChoiceMechanism):
    """Chooses one of finitely many candidates, never worse than the exponential one.

    Candidates are visited in random order. Each is chosen with probability
    exp(epsilon * (score - best score) / (2 Delta)), or exp(epsilon * (score - best
    score) / Delta) if the score is monotone, and the first success ends the search
    [McKenna2020permute]_. The expected score is at least that of the exponential
    mechanism at the same epsilon, for all scores. The distribution is that of the
    largest score after exponential noise [Ding2021permute]_, which is how it is drawn,
    so the best score need not be known beforehand.

    Many choices compose better with
    :class:`~botorch_dp.privacy.ExponentialMechanism`: the smaller zero-concentrated
    cost of that mechanism is not proven for this one.

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
        secure: Whether to draw exact exponential noise. It needs all candidates in
            memory.
        unit: What neighbouring data sets differ in.

    Example:
        >>> import torch
        >>> from botorch_dp.privacy import Ledger, PureDP
        >>> mechanism = PermuteAndFlipMechanism(PureDP(epsilon=10.0), sensitivity=0.01)
        >>> scores = torch.tensor([0.1, 0.9, 0.3])
        >>> int(mechanism.release(scores, ledger=Ledger()))
        1
    """

    name = "permute-and-flip"

    def event(self, size: int = 1) -> PrivacyEvent:
        """Return the cost of one choice, which does not depend on ``size``."""
        del size
        return PermuteAndFlipEvent(self.epsilon)

    def _draw(self, private_value: Iterable[Tensor]) -> Tensor:
        return self.noise_source.exponential_argmax(private_value, self.scale)
