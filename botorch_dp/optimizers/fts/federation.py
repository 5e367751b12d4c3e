"""What a federation agrees on before it begins: public, and the same for everyone.

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
from botorch_dp.optimizers.fts.randomness import AgentRandomness
from botorch_dp.optimizers.fts.regions import Regions, SearchDomain
from botorch_dp.optimizers.fts.weights import ExplorationWeights


@dataclass(frozen=True)
class Federation:
    """The settings that agents and server share.

    None of them may be chosen by looking at agents' data.

    Args:
        num_agents: The number of agents N.
        lower: The lower bounds of the domain.
        upper: Its upper bounds.
        lengthscale: Of the kernel, for points scaled to the unit cube: one for each
            dimension.
        num_features: The number of shared features M.
        num_regions: The number of regions P; 1 for no distributed exploration.
        nu: The smoothness of a Matern kernel, or ``"rbf"``.
        outputscale: The prior variance of a score.
        noise_variance: The variance of a score's noise, for the model.
        feature_seed: From which everyone makes the same features.
        num_initial: How many points an agent begins with.
        trust: How often agents follow the broadcast: ``"sqrt"``, ``"inverse"`` or
            ``"never"``, see :class:`FTSAgents`.
        local: ``"fresh"`` or ``"shared"`` features for local Thompson sampling.
        center: Whether an agent subtracts the mean of its own scores.
        num_candidates: How many points an agent tries in a box.
        strength: Of the preference for agents of a region, see
            :class:`ExplorationWeights`.
        hold: For how many rounds.
        fall: Over how many rounds it then falls to zero.

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
    center: bool = False
    num_candidates: int = 1000
    strength: float = 15.0
    hold: int = 10
    fall: int = 30

    def __post_init__(self) -> None:
        for name in ("lower", "upper", "lengthscale"):
            values = tuple(float(value) for value in getattr(self, name))
            object.__setattr__(self, name, values)
        check_count("num_agents", self.num_agents)
        for name in ("num_initial", "num_candidates"):
            check_count(name, getattr(self, name))
        check_positive("noise_variance", self.noise_variance)
        check_choice("trust", self.trust, tuple(TRUST))
        check_choice("local", self.local, LOCAL)
        if not len(self.lower) == len(self.upper) == len(self.lengthscale) > 0:
            raise InvalidArgumentError(
                "lower, upper and lengthscale must have a number for each dimension, "
                f"got {self.lower}, {self.upper} and {self.lengthscale}."
            )
        self.features(device="cpu")  # checks its own arguments
        self.domain(device="cpu")
        self.weights(device="cpu")

    @property
    def dim(self) -> int:
        """The number of dimensions D."""
        return len(self.lower)

    def regions(self) -> Regions:
        """Return the cut of the domain."""
        return Regions(self.dim, self.num_regions)

    def assignment(self, device: torch.device | str = "cpu") -> Tensor:
        """Return each agent's region: agent n begins in region n mod P."""
        return torch.arange(self.num_agents, device=device) % self.num_regions

    def weights(self, device: torch.device | str = "cpu") -> ExplorationWeights:
        """Return the weights of agents in the broadcasts."""
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
        """Return the shared features, or from another seed others of this kernel."""
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
        """Return where to search: the box, or candidates in it."""
        bounds = torch.tensor([self.lower, self.upper], dtype=dtype, device=device)
        return SearchDomain(bounds, candidates)

    def agents(
        self,
        indices: Tensor | None = None,
        *,
        candidates: Tensor | None = None,
        seed: int | None = None,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
    ) -> FTSAgents:
        """Return some agents as a batch; all of them by default.

        Args:
            indices: Their numbers.
            candidates: All points to choose from, ``C x D``; the box by default.
            seed: Of their random choices; drawn from the operating system by default.
            dtype: Of points and scores.
            device: Of points and scores.
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
            center=self.center,
            num_candidates=self.num_candidates,
            randomness=AgentRandomness(seed),
            features_of=functools.partial(self.features, **tkwargs),
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
                f"text must be settings as written by to_json: {error}."
            ) from error
