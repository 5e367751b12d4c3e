r"""Federated agents: local Thompson sampling, and following the server's broadcast.

An agent models its own scores by a Bayesian linear model of features that all agents
share. A sample of its weights is therefore a message that the others can use
([Dai2021dpfts]_, Algorithm 2). A batch of agents does the same as each of them alone,
from the same random numbers.

Everything that an agent has observed is private to it. Its message is private until the
server has added noise. Needs torch and numpy only, so that a deployed agent starts
quickly.

References:
    .. [Dai2021dpfts] Z. Dai, B. K. H. Low and P. Jaillet. Differentially Private
        Federated Bayesian Optimization with Distributed Exploration. NeurIPS 2021.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from botorch_dp._validation import (
    check_choice,
    check_count,
    check_positive,
    check_tensor,
)
from botorch_dp.exceptions import InvalidArgumentError, OptimizerStateError
from botorch_dp.models.fourier import FourierFeatures
from botorch_dp.models.linear_models import LinearModels
from botorch_dp.optimizers.fts.maximization import maximize
from botorch_dp.optimizers.fts.own_spaces import OwnSpaces
from botorch_dp.optimizers.fts.posterior_scale import PosteriorScale
from botorch_dp.optimizers.fts.private_state import PrivatelyStateful
from botorch_dp.optimizers.fts.randomness import AgentRandomness, consecutive
from botorch_dp.optimizers.fts.regions import Regions, SearchDomain

LOCAL = ("fresh", "shared")
# The probability of following the broadcast in round t = 1, 2, ...: 1 - p_t.
TRUST: dict[str, Callable[[int], float]] = {
    "sqrt": lambda t: 1.0 / math.sqrt(t),  # the paper's synthetic experiments
    "inverse": lambda t: 1.0 / (t + 1),  # the authors' script for landmines
    "inverse_square": lambda t: 1.0 / (t + 1) ** 2,  # the condition of Theorem 1
    "never": lambda t: 0.0,  # Thompson sampling by each agent alone
}
_SAME = 1e-9  # points that are no further apart count as one point


class FTSAgents(PrivatelyStateful):
    r"""Some of the agents of a federation, as a batch.

    Args:
        features: The features that all agents share, for points in the unit cube.
        domain: The domain to search.
        regions: The regions of the domain.
        agents: The indices of the agents, an ``n`` tensor in ascending order. Agent k
            starts in region k mod P.
        noise_variance: The variance of the noise of a score in the model.
        num_initial: The number of initial points of each agent.
        trust: The probability of following the broadcast: ``"sqrt"``, ``"inverse"``,
            ``"inverse_square"``, ``"never"``, or a function from the round (starting at
            1) to a probability.
        local: Whether local Thompson sampling draws ``"fresh"`` features in each round,
            as the authors do, or uses the ``"shared"`` ones, which is faster.
        scale: The factor of the posterior's standard deviation in local Thompson
            sampling (line 6); 1 by default.
        center: Whether an agent subtracts the mean of its own scores first.
        num_candidates: The number of points to try in a box before the best one is
            refined.
        avoid_repeats: Whether to replace a point that was evaluated before by a random
            one.
        randomness: The random numbers of the agents.
        features_of: A function from a seed to fresh features of the same kernel.
        own_bounds: An ``n x 2 x D`` tensor of the boxes in which the agents search;
            the whole domain if None. Nobody else needs to know an agent's box.

    Example:
        >>> lengthscale = torch.tensor([0.2], dtype=torch.float64)
        >>> features = FourierFeatures.draw(lengthscale, num_features=50, seed=0)
        >>> domain = SearchDomain(torch.tensor([[0.0], [1.0]], dtype=torch.float64))
        >>> agents = FTSAgents(
        ...     features=features, domain=domain, regions=Regions(1, 2),
        ...     agents=torch.arange(6), local="shared", randomness=AgentRandomness(1),
        ... )
        >>> X = agents.ask(0)
        >>> agents.tell(X, -(X - 0.3).square().sum(dim=-1))
        >>> agents.messages(0).shape
        torch.Size([6, 50])
    """

    def __init__(
        self,
        *,
        features: FourierFeatures,
        domain: SearchDomain,
        regions: Regions,
        agents: Tensor,
        noise_variance: float = 1e-2,
        num_initial: int = 10,
        trust: str | Callable[[int], float] = "sqrt",
        local: str = "fresh",
        scale: PosteriorScale | None = None,
        center: bool = False,
        num_candidates: int = 1000,
        avoid_repeats: bool = True,
        randomness: AgentRandomness,
        features_of: Callable[[int], FourierFeatures] | None = None,
        own_bounds: Tensor | None = None,
    ) -> None:
        if features.dim != domain.dim or regions.dim != domain.dim:
            raise InvalidArgumentError(
                "features, domain and regions must have the same number of dimensions, "
                f"got {features.dim}, {domain.dim} and {regions.dim}."
            )
        check_tensor("agents", agents, ("n",), dtype=torch.int64)
        if int(agents[0]) < 0 or not (agents.diff() > 0).all():
            raise InvalidArgumentError(
                "agents must be indices from 0 in ascending order, got "
                f"{agents.tolist()}."
            )
        self.features, self.domain, self.regions = features, domain, regions
        self.agents = agents
        self.num_initial = check_count("num_initial", num_initial)
        self.noise_variance = check_positive("noise_variance", noise_variance)
        self.num_candidates = check_count("num_candidates", num_candidates)
        self._local = check_choice("local", local, LOCAL)
        if local == "fresh" and features_of is None:
            raise InvalidArgumentError(
                "features_of must be a function that draws fresh features if "
                "local='fresh', got None; or use local='shared'."
            )
        self._features_of = features_of
        if isinstance(trust, str):
            trust = TRUST[check_choice("trust", trust, tuple(TRUST))]
        self._trust = trust
        self.scale = PosteriorScale() if scale is None else scale
        self._center, self._avoid_repeats = bool(center), bool(avoid_repeats)
        self._randomness = randomness
        self._spaces: OwnSpaces | None = None
        if own_bounds is not None:
            check_tensor("own_bounds", own_bounds, (len(agents), 2, domain.dim))
            self._spaces = OwnSpaces(own_bounds, domain)
        self._X = domain.bounds.new_empty(len(agents), 0, domain.dim)
        self._Y = domain.bounds.new_empty(len(agents), 0)
        self._seen = torch.zeros(len(agents), 0, dtype=torch.bool, device=agents.device)
        self._models = self._new_models(features)

    @property
    def num_agents(self) -> int:
        """The number of agents in the batch."""
        return len(self.agents)

    @property
    def assignment(self) -> Tensor:
        """The region in which each agent starts."""
        return self.agents % self.regions.num_regions

    @property
    def best(self) -> tuple[Tensor, Tensor]:
        """The best point and score of each agent so far: private to the agent.

        NaN and minus infinity for an agent that has observed nothing.
        """
        if not self._Y.shape[1]:
            raise OptimizerStateError("No agent has a score yet: call tell() first.")
        masked = self._Y.masked_fill(~self._seen, -torch.inf)
        value, index = masked.max(dim=-1)
        x = self._X.take_along_dim(index[:, None, None], dim=1).squeeze(1)
        x = self.domain.from_unit(x)
        return torch.where(value.isfinite().unsqueeze(-1), x, torch.nan), value

    def ask(self, number: int, broadcast: Tensor | None = None) -> Tensor:
        """Return where to evaluate next ([Dai2021dpfts]_, Algorithm 2, lines 2 to 8).

        Args:
            number: The index of the round; 0 is for the initial points.
            broadcast: The ``P x M`` weights of the server's last broadcast; None for
                local Thompson sampling only.

        Returns:
            An ``n x num_initial x D`` tensor in round 0, ``n x 1 x D`` in later ones.
        """
        if number == 0:
            return self.domain.from_unit(self._initial_points())
        X = self._local_choices(number)
        if broadcast is not None:
            shape = (self.regions.num_regions, self.features.num_features)
            check_tensor("broadcast", broadcast, shape, finite=True)
            shared = self._maximize(
                number, self.features, broadcast.to(self.features.phases)[None]
            )
            coins = self._uniforms("trust", number, 1).squeeze(-1)
            follow = coins < self._trust(number)
            X = torch.where(follow.unsqueeze(-1), shared, X)
        if self._avoid_repeats:
            X = self._without_repeats(number, X)
        return self.domain.from_unit(X.unsqueeze(1))

    def tell(self, X: Tensor, Y: Tensor, where: Tensor | None = None) -> None:
        """Take the scores at points, which are maximized.

        Args:
            X: An ``n x k x D`` tensor, as returned by :meth:`ask`.
            Y: An ``n x k`` tensor of scores: private. A score that is not finite counts
                as not observed.
            where: An ``n`` tensor of booleans: which agents have evaluated; all if
                None.
        """
        n, dim = self.num_agents, self.domain.dim
        if X.dim() != 3 or X.shape[::2] != (n, dim) or Y.shape != X.shape[:2]:
            raise InvalidArgumentError(
                f"X and Y must have shapes {n} x k x {dim} and {n} x k, got "
                f"{tuple(X.shape)} and {tuple(Y.shape)}."
            )
        X, Y = self.domain.to_unit(X.to(self._X)), Y.detach().to(self._Y)
        seen = Y.isfinite()
        if where is not None:
            seen = seen & where.unsqueeze(-1)
        Y = Y.masked_fill(~seen, 0.0)
        self._X = torch.cat([self._X, X], dim=1)
        self._Y = torch.cat([self._Y, Y], dim=1)
        self._seen = torch.cat([self._seen, seen], dim=1)
        if self._center:
            return  # the new mean changes every centered score
        for k in range(X.shape[1]):
            self._models.append(X[:, k : k + 1], Y[:, k : k + 1], where=seen[:, k])

    def messages(self, number: int) -> Tensor:
        """Return a sample of each agent's weights, ``n x M``: private (line 10).

        Zero for an agent that has observed nothing, which counts as absent.
        """
        models = self._current_models(self.features)
        drawn = models.sample(self._normals("message", number))
        knows = self._seen.any(dim=-1, keepdim=True)
        return torch.where(knows, drawn, torch.zeros_like(drawn))

    def _initial_points(self) -> Tensor:
        """Return uniform points in the agents' own regions, ``n x num_initial x D``."""
        size = self.num_initial * self.domain.dim
        uniforms = self._uniforms("initial", 0, size).reshape(
            -1, self.num_initial, size // self.num_initial
        )
        if self.domain.candidates is not None:
            return self._initial_candidates(self.domain.candidates, uniforms[..., 0])
        boxes = [self.regions.box(region) for region in range(self.regions.num_regions)]
        corners = self._X.new_tensor(boxes)  # P x 2 x D
        corners = corners[self.assignment]  # n x 2 x D
        if self._spaces is not None:
            corners = self._spaces.within(*corners.unbind(dim=1))
        lower, upper = corners.unsqueeze(2).unbind(dim=1)
        return lower + uniforms * (upper - lower)

    def _initial_candidates(self, candidates: Tensor, uniforms: Tensor) -> Tensor:
        regions = self.regions.index(candidates)
        if self._spaces is not None:
            own = regions == self.assignment.unsqueeze(-1)  # n x C
            return candidates[self._spaces.choose(uniforms, own)]
        points = []
        for region in range(self.regions.num_regions):
            inside = candidates[regions == region]
            if not len(inside):
                raise InvalidArgumentError(
                    f"candidates must lie in every region, but there are none in "
                    f"region {region} of {self.regions.num_regions}."
                )
            chosen = (uniforms * len(inside)).long().clamp(max=len(inside) - 1)
            points.append(inside[chosen])  # n x k x D
        stacked = torch.stack(points)  # P x n x k x D
        index = self.assignment[None, :, None, None]
        return stacked.take_along_dim(index, dim=0).squeeze(0)

    def _local_choices(self, number: int) -> Tensor:
        features = self.features
        if self._local == "fresh":
            assert self._features_of is not None
            features = self._features_of(self._randomness.child_seed("fresh", number))
        models = self._current_models(features)
        # Agents may have missed some rounds, but how many they were told of is public.
        possible = self.num_initial + number - 1
        beta = self.scale(possible, features, self.noise_variance)
        # A sample is affine in its normal numbers, so this scales its distance to the
        # posterior mean.
        normals = beta * self._normals("local", number)
        # An agent whose scores are so large that its model overflows must not stop the
        # batch.
        weights = models.sample(normals).nan_to_num(0.0, 0.0, 0.0)
        return self._maximize(number, features, weights.unsqueeze(1))

    def _maximize(
        self, number: int, features: FourierFeatures, weights: Tensor
    ) -> Tensor:
        """Return where each function of ``n x P x M`` weights is largest, ``n x D``."""
        X = self.domain.candidates
        if X is None:
            X = self._shared_candidates(number)
        climb = self.domain.candidates is None
        within = None if self._spaces is None else self._spaces.boxes
        return maximize(features, self.regions, weights, X, climb=climb, within=within)

    def _shared_candidates(self, number: int) -> Tensor:
        """Return random points, which are the same for all agents."""
        everyone = torch.zeros(1, dtype=torch.int64, device=self.agents.device)
        size = self.num_candidates * self.domain.dim
        drawn = self._randomness.uniforms("candidates", number, everyone, size)
        return drawn.squeeze(0).to(self._X).reshape(-1, self.domain.dim)

    def _without_repeats(self, number: int, X: Tensor) -> Tensor:
        distances = (self._X - X.unsqueeze(1)).abs().amax(dim=-1)
        repeated = ((distances <= _SAME) & self._seen).any(dim=-1)
        uniforms = self._uniforms("repeat", number, self.domain.dim)
        other = uniforms
        if self._spaces is not None and self.domain.candidates is None:
            other = self._spaces.place(uniforms)
        elif self._spaces is not None and self.domain.candidates is not None:
            index = self._spaces.choose(uniforms[:, :1]).squeeze(-1)
            other = self.domain.candidates[index]
        elif self.domain.candidates is not None:
            size = len(self.domain.candidates)
            index = (uniforms[:, 0] * size).long().clamp(max=size - 1)
            other = self.domain.candidates[index]
        return torch.where(repeated.unsqueeze(-1), other, X)

    def _current_models(self, features: FourierFeatures) -> LinearModels:
        if features is self.features and not self._center:
            return self._models
        models, Y = self._new_models(features, reuse=False), self._Y
        if self._center:
            count = self._seen.sum(dim=-1, keepdim=True).clamp(min=1)
            Y = Y - (Y * self._seen).sum(dim=-1, keepdim=True) / count
        return self._fill(models, Y)

    def _fill(self, models: LinearModels, Y: Tensor) -> LinearModels:
        if self._seen.all():
            models.append(self._X, Y)
            return models
        for k in range(Y.shape[1]):
            one = slice(k, k + 1)
            models.append(self._X[:, one], Y[:, one], where=self._seen[:, k])
        return models

    def _new_models(
        self, features: FourierFeatures, *, reuse: bool = True
    ) -> LinearModels:
        return LinearModels(
            features, self.num_agents, noise_variance=self.noise_variance, reuse=reuse
        )

    def _uniforms(self, purpose: str, number: int, size: int) -> Tensor:
        drawn = self._randomness.uniforms(purpose, number, self.agents, size)
        return drawn.to(self._X)

    def _normals(self, purpose: str, number: int) -> Tensor:
        size = self._models.num_normals
        drawn = self._randomness.normals(purpose, number, self.agents, size)
        return drawn.to(self._X)

    def settings(self) -> dict[str, Any]:
        """Return the public parameters, as plain values."""
        return {
            "method": "fts-agents",
            "agents": consecutive(self.agents.tolist()),
            "features": self.features.fingerprint,
            "domain": self.domain.fingerprint,
            "num_regions": self.regions.num_regions,
            "noise_variance": self.noise_variance,
            "num_initial": self.num_initial,
            "local": self._local,
            "scale": [self.scale.scale, self.scale.rkhs_bound, self.scale.delta],
            "center": self._center,
            "own_bounds": None if self._spaces is None else self._spaces.fingerprint,
            "num_candidates": self.num_candidates,
            "avoid_repeats": self._avoid_repeats,
        }

    def _state(self) -> dict[str, Any]:
        return {
            "seed": self._randomness.seed,
            "X": self._X,
            "Y": self._Y,
            "seen": self._seen,
        }

    def _check_state(self, state: dict[str, Any]) -> None:
        check_count("seed", state["seed"], minimum=0)
        n, k, dim = self.num_agents, state["X"].shape[1], self.domain.dim
        for name, shape in (("X", (n, k, dim)), ("Y", (n, k)), ("seen", (n, k))):
            if state[name].shape != shape:
                raise ValueError(f"{name} of shape {tuple(state[name].shape)}")

    def _restore(self, state: dict[str, Any]) -> None:
        self._randomness = AgentRandomness(state["seed"])
        self._X, self._Y = state["X"].to(self._X), state["Y"].to(self._Y)
        self._seen = state["seen"].to(self._seen)
        if not self._center:
            self._models = self._fill(self._new_models(self.features), self._Y)


class FTSAgent(FTSAgents):
    """One agent by itself, as it is deployed.

    Args:
        index: The index of the agent in the federation.
        device: The device of the agent.
        **kwargs: The other arguments of :class:`FTSAgents`.
    """

    def __init__(self, index: int, *, device: str = "cpu", **kwargs: Any) -> None:
        check_count("index", index, minimum=0)
        super().__init__(agents=torch.tensor([index], device=device), **kwargs)
