"""The settings of a federation: public, and the same for all agents and the server.

Needs torch and numpy only, so that a deployed agent starts quickly.
"""

import functools
import json
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

import torch
from torch import Tensor

from botorch_dp._validation import check_choice, check_count, check_positive
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.models.fourier import FourierFeatures
from botorch_dp.optimizers.fts.agents import LOCAL, TRUST, FTSAgents
from botorch_dp.optimizers.fts.posterior_scale import PosteriorScale
from botorch_dp.optimizers.fts.randomness import AgentRandomness
from botorch_dp.optimizers.fts.regions import Regions, SearchDomain
from botorch_dp.optimizers.fts.weights import ExplorationWeights


@dataclass(frozen=True)
class Federation:
    """The settings that agents and server share.

    None of them may be chosen by looking at the agents' data.

    Args:
        num_agents: The number of agents N.
        lower: The lower bounds of the domain.
        upper: The upper bounds of the domain.
        lengthscale: The lengthscale of the kernel in each dimension, for points scaled
            to the unit cube.
        num_features: The number of shared features M.
        num_regions: The number of regions P; 1 for no distributed exploration.
        nu: The smoothness of a Matern kernel, or ``"rbf"``.
        outputscale: The prior variance of a score.
        noise_variance: The variance of a score's noise, for the model.
        feature_seed: The seed from which everyone draws the same features.
        num_initial: The number of initial points of each agent.
        trust: How often agents follow the broadcast: ``"sqrt"``, ``"inverse"``,
            ``"inverse_square"`` or ``"never"``, see :class:`FTSAgents`.
        local: ``"fresh"`` or ``"shared"`` features for local Thompson sampling.
        scale: The factor of the posterior's standard deviation in local Thompson
            sampling: a number, ``"paper"`` or ``"confidence"``, see
            :class:`PosteriorScale`. The default is 1, as in the authors' scripts.
        rkhs_bound: The bound B on the norm of a function, for ``scale="paper"`` and
            ``"confidence"``.
        scale_delta: The probability with which the bounds of these scales may fail.
        center: Whether an agent subtracts the mean of its own scores.
        num_candidates: The number of points that an agent tries in a box.
        strength: The initial preference for agents of a region, see
            :class:`ExplorationWeights`.
        hold: The number of rounds before the preference decreases.
        fall: The number of rounds in which it decreases to zero.

    Example:
        >>> federation = Federation(
        ...     num_agents=4, lower=(0.0,), upper=(1.0,), lengthscale=(0.1,)
        ... )
        >>> Federation.from_json(federation.to_json()) == federation
        True
    """

    num_agents: int
    lower: tuple[float, ...]
    upper: tuple[float, ...]
    lengthscale: tuple[float, ...]
    num_features: int = 100
    num_regions: int = 1
    nu: float | Literal["rbf"] = "rbf"
    outputscale: float = 1.0
    noise_variance: float = 1e-2
    feature_seed: int = 0
    num_initial: int = 10
    trust: str = "sqrt"
    local: str = "fresh"
    scale: float | str = 1.0
    rkhs_bound: float = 1.0
    scale_delta: float = 0.1
    center: bool = False
    num_candidates: int = 1000
    strength: float = 15.0
    hold: int = 10
    fall: int = 30

    def __post_init__(self) -> None:
        for name in ("lower", "upper", "lengthscale"):
            values = tuple(float(value) for value in getattr(self, name))
            object.__setattr__(self, name, values)
        for name in ("num_agents", "num_initial", "num_candidates"):
            check_count(name, getattr(self, name))
        check_positive("noise_variance", self.noise_variance)
        check_choice("trust", self.trust, tuple(TRUST))
        check_choice("local", self.local, LOCAL)
        if not len(self.lower) == len(self.upper) == len(self.lengthscale) > 0:
            raise InvalidArgumentError(
                "lower, upper and lengthscale must have one number per dimension, "
                f"got {self.lower}, {self.upper} and {self.lengthscale}."
            )
        # These check the other settings.
        self.posterior_scale()
        self.features(device="cpu")
        self.domain(device="cpu")
        self.weights(device="cpu")

    @property
    def dim(self) -> int:
        """The number of dimensions D."""
        return len(self.lower)

    def regions(self) -> Regions:
        """Return the regions of the domain."""
        return Regions(self.dim, self.num_regions)

    def posterior_scale(self) -> PosteriorScale:
        """Return the factor of the standard deviation in local Thompson sampling."""
        return PosteriorScale(self.scale, self.rkhs_bound, self.scale_delta)

    def assignment(self, device: torch.device | str = "cpu") -> Tensor:
        """Return the region in which each agent starts: n mod P for agent n."""
        return torch.arange(self.num_agents, device=device) % self.num_regions

    def weights(self, device: torch.device | str = "cpu") -> ExplorationWeights:
        """Return the weights of the agents in the broadcasts."""
        return ExplorationWeights(
            self.assignment(device),
            self.num_regions,
            strength=self.strength,
            hold=self.hold,
            fall=self.fall,
        )

    def features(
        self,
        seed: int | None = None,
        *,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
    ) -> FourierFeatures:
        """Return the shared features, or other ones of this kernel from a seed."""
        return FourierFeatures.draw(
            torch.tensor(self.lengthscale, dtype=dtype, device=device),
            num_features=self.num_features,
            seed=self.feature_seed if seed is None else seed,
            nu=self.nu,
            outputscale=self.outputscale,
        )

    def domain(
        self,
        candidates: Tensor | None = None,
        *,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
    ) -> SearchDomain:
        """Return the domain: the box, or candidates in it."""
        bounds = torch.tensor([self.lower, self.upper], dtype=dtype, device=device)
        return SearchDomain(bounds, candidates)

    def agents(
        self,
        indices: Tensor | None = None,
        *,
        candidates: Tensor | None = None,
        own_bounds: Tensor | None = None,
        seed: int | None = None,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
    ) -> FTSAgents:
        """Return some agents as a batch; all of them by default.

        Args:
            indices: The indices of the agents, in ascending order.
            candidates: All points to choose from, ``C x D``; the box by default.
            own_bounds: An ``n x 2 x D`` tensor of the boxes in which they search; the
                whole domain by default.
            seed: The seed of their choices; drawn from the operating system by default.
            dtype: The dtype of points and scores.
            device: The device of points and scores.
        """
        if indices is None:
            indices = torch.arange(self.num_agents, device=device)
        if len(indices) and int(indices[-1]) >= self.num_agents:
            raise InvalidArgumentError(
                f"indices must be below num_agents={self.num_agents}, got "
                f"{int(indices[-1])}."
            )
        tkwargs: dict[str, Any] = {"dtype": dtype, "device": device}
        return FTSAgents(
            features=self.features(**tkwargs),
            domain=self.domain(candidates, **tkwargs),
            regions=self.regions(),
            agents=indices.to(device),
            noise_variance=self.noise_variance,
            num_initial=self.num_initial,
            trust=self.trust,
            local=self.local,
            scale=self.posterior_scale(),
            center=self.center,
            num_candidates=self.num_candidates,
            randomness=AgentRandomness(seed),
            features_of=functools.partial(self.features, **tkwargs),
            own_bounds=None if own_bounds is None else own_bounds.to(**tkwargs),
        )

    def to_json(self) -> str:
        """Return the settings as text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Federation":
        """Return the settings that :meth:`to_json` wrote."""
        try:
            state = json.loads(text)
            if set(state) != {field.name for field in fields(cls)}:
                raise ValueError(f"fields {sorted(state)}")
            return cls(**state)
        except (ValueError, TypeError) as error:
            raise InvalidArgumentError(
                f"text must be settings written by to_json(): {error}."
            ) from error
