r"""A Bayesian linear model for each of many agents, batched.

Agent n models its scores as :math:`y = \phi(x)^T w_n + e` with :math:`w_n \sim N(0, I)`
and :math:`e \sim N(0, s^2)`, where all agents share the features :math:`\phi`. It is a
Gaussian process with kernel :math:`\phi(x)^T \phi(x')`. With :math:`\Phi` the ``t x M``
features of its t observations, the posterior is

.. math::
    N\big(A^{-1} \Phi^T y, \; s^2 A^{-1}\big), \qquad A = \Phi^T \Phi + s^2 I.

An agent with t < M observations samples by Matheron's rule [Wilson2020pathwise]_, an
agent with more from a factor of A; both are exact.

**Memory.** While t < M, an agent keeps its observations and a triangle of the Cholesky
factor of the ``t x t`` matrix :math:`\Phi \Phi^T + s^2 I`, to which an observation
appends a row. Features are kept while those of all agents fit into 256 MB, and are
computed again when needed otherwise, a few agents at a time. From
t = M on it keeps :math:`\Phi^T \Phi` and :math:`\Phi^T y`, whose size does not grow.

Observations and samples are private to their agents; nothing looks at their values.

References:
    .. [Wilson2020pathwise] J. T. Wilson, V. Borovitskiy, A. Terenin, P. Mostowsky and
        M. P. Deisenroth. Efficiently Sampling Functions from Gaussian Process
        Posteriors. ICML 2020.
    .. [Dai2021dpfts] Z. Dai, B. K. H. Low and P. Jaillet. Differentially Private
        Federated Bayesian Optimization with Distributed Exploration. NeurIPS 2021.
        Equation 2.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from botorch_dp._validation import (
    check_count,
    check_like,
    check_positive,
    describe_private,
)
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.models.fourier import FourierFeatures
from botorch_dp.models.linear_chunk import BLOCK, LinearChunk

# Features are kept while they are not more numbers than this: 256 MB.
_KEPT = 2**25


class LinearModels:
    r"""The models of N agents, each with its own number of observations.

    Computations are in double precision. A nan of one agent spoils the samples of that
    agent only. The noise variance is at least about 1e-15 of the trace of
    :math:`\Phi \Phi^T`, the size of rounding errors.

    **Cost**, measured on one core with N = 10,000 agents, M = 100 features, D = 2
    dimensions and t = 70 observations, when features are no longer kept: a sample of
    all agents after one more observation each takes 0.7 s, two thirds of it for
    features and products with them, and the process grows by 300 MB. If an agent is
    far behind the others of its chunk, each of its observations costs as much as a new
    factor of the whole chunk.

    Args:
        features: The features that all agents share.
        num_agents: The number of agents N.
        noise_variance: The variance :math:`s^2` of an observation.
        chunk_size: The number of agents that are computed at a time, which limits
            temporary memory to a few times ``chunk_size x t x M`` numbers.
        reuse: Whether to keep factors and features for later samples. Models that
            sample once are faster without.

    Example:
        >>> lengthscale = torch.tensor([0.2], dtype=torch.float64)
        >>> features = FourierFeatures.draw(lengthscale, num_features=50, seed=0)
        >>> models = LinearModels(features, 4, noise_variance=1e-4)
        >>> X = torch.rand(4, 3, 1, dtype=torch.float64)
        >>> models.append(X, X.squeeze(-1).sin())
        >>> present = torch.tensor([True, True, False, True])
        >>> models.append(X[:, :1], X[:, 0].sin(), where=present)
        >>> models.counts
        tensor([4, 4, 3, 4])
        >>> generator = torch.Generator().manual_seed(0)
        >>> models.sample(generator=generator).shape
        torch.Size([4, 50])
    """

    def __init__(
        self,
        features: FourierFeatures,
        num_agents: int,
        *,
        noise_variance: float,
        chunk_size: int = 128,
        reuse: bool = True,
    ) -> None:
        if not isinstance(features, FourierFeatures):  # it may be private data
            raise InvalidArgumentError(
                f"features must be FourierFeatures, got {describe_private(features)}."
            )
        self.features = features
        self.num_agents = check_count("num_agents", num_agents)
        self.noise_variance = check_positive("noise_variance", noise_variance)
        self.chunk_size = check_count("chunk_size", chunk_size)
        self._reuse = bool(reuse)
        double = features.to(dtype=torch.float64)
        self._chunks = [
            LinearChunk(
                double,
                min(chunk_size, num_agents - start),
                self.noise_variance,
                reuse=reuse,
            )
            for start in range(0, num_agents, chunk_size)
        ]

    @property
    def num_features(self) -> int:
        """The number of features M."""
        return self.features.num_features

    @property
    def num_normals(self) -> int:
        """The number of standard normal numbers per agent and sample: 2 M."""
        return 2 * self.num_features

    @property
    def counts(self) -> Tensor:
        """An ``N`` tensor: the number of observations of each agent."""
        return torch.cat([chunk.counts for chunk in self._chunks])

    @torch.no_grad()
    def append(self, X: Tensor, y: Tensor, where: Tensor | None = None) -> None:
        """Add observations.

        Args:
            X: An ``N x k x D`` tensor of points.
            y: An ``N x k`` tensor of their scores: private.
            where: An ``N`` tensor of booleans: which agents have observed; all if None.
                The rows of the others are ignored.
        """
        like, N = self.features.phases, self.num_agents
        check_like("X", X, (N, "k", self.features.dim), like)
        check_like("y", y, X.shape[:2], like)
        if where is None:
            where = torch.ones(N, dtype=torch.bool, device=X.device)
        check_like("where", where, (N,), like, dtype=torch.bool)
        parts = (tensor.split(self.chunk_size) for tensor in (X, y, where))
        for chunk, *rows in zip(self._chunks, *parts, strict=True):
            chunk.append(rows[0].double(), rows[1].double(), rows[2])
        self._provide_blocks()

    @torch.no_grad()
    def mean(self) -> Tensor:
        """Return the posterior means of the weights, ``N x M``: private."""
        means = self._empty()
        parts = means.split(self.chunk_size)
        for chunk, part in zip(self._chunks, parts, strict=True):
            part.copy_(chunk.mean())
        return means

    @torch.no_grad()
    def sample(
        self, normals: Tensor | None = None, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Draw the weights of every agent once from its posterior.

        The sample of an agent depends on its own observations and normal numbers only,
        and not on the other agents, up to rounding.

        Args:
            normals: An ``N x 2M`` tensor of standard normal numbers.
            generator: A generator to draw them from instead, row by row.

        Returns:
            An ``N x M`` tensor: private.
        """
        if (normals is None) == (generator is None):
            raise InvalidArgumentError(
                "sample needs either normals or a generator, got "
                f"{'neither' if normals is None else 'both'}."
            )
        shape = (self.num_agents, self.num_normals)
        if normals is None:
            assert generator is not None
            drawn = torch.randn(
                shape, generator=generator, dtype=torch.float64, device=generator.device
            )
            normals = drawn.to(self.features.device)
        else:
            check_like("normals", normals, shape, self.features.phases)
        samples = self._empty()
        parts = (tensor.split(self.chunk_size) for tensor in (samples, normals))
        for chunk, sample, part in zip(self._chunks, *parts, strict=True):
            sample.copy_(chunk.sample(part.double()))
        return samples

    def state_dict(self) -> dict[str, Any]:
        """Return the observations, or the sums that replace them: private."""
        return {
            "chunk_size": self.chunk_size,
            "fingerprint": self.features.fingerprint,
            "chunks": [chunk.state_dict() for chunk in self._chunks],
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from :meth:`state_dict` of models with the same features and size.

        Factors are computed again, so that samples are the same up to rounding.
        """
        sizes = [len(chunk["counts"]) for chunk in state_dict["chunks"]]
        if (
            state_dict["fingerprint"] != self.features.fingerprint
            or state_dict["chunk_size"] != self.chunk_size
            or sizes != [len(chunk.counts) for chunk in self._chunks]
        ):
            raise InvalidArgumentError(
                "state_dict must come from models with the same features, number of "
                f"agents and chunk_size, got {sum(sizes)} agents in chunks of "
                f"{state_dict['chunk_size']}."
            )
        for chunk, state in zip(self._chunks, state_dict["chunks"], strict=True):
            chunk.load_state_dict(state)
        self._provide_blocks()

    def _empty(self) -> Tensor:
        return self.features.phases.new_empty(self.num_agents, self.num_features)

    def _provide_blocks(self) -> None:
        """Allocate the memory for the factors of chunks, as parts of large tensors.

        Small tensors would fragment the memory between temporary ones, which could
        then not be reused (measured: up to 400 MB more).
        """
        if not self._reuse:
            return
        short = [chunk for chunk in self._chunks if chunk.any_short]
        rows = max((chunk.inputs.shape[1] for chunk in short), default=0)
        for chunk in short:
            chunk.keep_features = rows * self.num_agents * self.num_features <= _KEPT
        sizes = [len(chunk.counts) for chunk in short]
        have = min((len(chunk.blocks) for chunk in short), default=0)
        need = max((chunk.num_blocks for chunk in short), default=0)
        for i in range(have, need):
            block = self.features.phases.new_empty(
                sum(sizes), BLOCK, BLOCK * (i + 1), dtype=torch.float64
            )
            for chunk, part in zip(short, block.split(sizes), strict=True):
                chunk.blocks.append(part)
