"""Federated and local Thompson sampling without privacy.

References:
    .. [Dai2021dpfts] Z. Dai, B. K. H. Low and P. Jaillet. Differentially Private
        Federated Bayesian Optimization with Distributed Exploration. NeurIPS 2021.
"""

from torch import Tensor

from botorch_dp.optimizers.fts.simulation import FederatedSimulation
from botorch_dp.privacy import Certificate


class FTSDE(FederatedSimulation):
    """Federated Thompson sampling without clipping, sampling or noise: not private.

    With one region it is FTS (as modified by [Dai2021dpfts]_). The arguments are those
    of :class:`FederatedSimulation`.
    """

    name = "fts-de"

    def _broadcast(self, where: Tensor | None) -> Tensor:
        messages = self._private_messages(where)
        weights = self.federation.weights(messages.device)(self._number)
        return weights.to(messages) @ messages

    def certificate(self) -> Certificate:
        """Return a certificate that guarantees nothing."""
        return Certificate.not_private(f"{self.name} broadcasts without noise")


class ThompsonSampling(FederatedSimulation):
    """Thompson sampling by each agent alone, with nothing shared: not private.

    The arguments are those of :class:`FederatedSimulation`.
    """

    name = "ts"

    def _broadcast(self, where: Tensor | None) -> None:
        return None

    def certificate(self) -> Certificate:
        """Return a certificate that guarantees nothing, since nothing is released."""
        return Certificate.not_private("agents share nothing and add no noise")
