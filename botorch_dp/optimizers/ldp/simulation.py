r"""LDP-BO: a stream of users under local privacy, simulated in one process.

The server and what a user does are those of :class:`LDPBOServer` and
:class:`LDPBOClient`; here R replications of the stream go side by side, as one batch.

References:
    .. [LDPBO2025] Online Differential Privacy Bayesian Optimization with Sliced
        Wasserstein Compression. Algorithm 1.
"""

import copy
import functools
import math
import os
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol

import torch
from gpytorch.kernels import Kernel
from torch import Tensor
from tqdm import tqdm

from botorch_dp._validation import check_count, check_private_tensor
from botorch_dp.exceptions import InvalidArgumentError, OptimizerStateError
from botorch_dp.models.surrogates.base import GradientSurrogate
from botorch_dp.optimizers.core.checkpoint import read_checkpoint, write_checkpoint
from botorch_dp.optimizers.core.optimizer import OptimizationResult, Step
from botorch_dp.optimizers.ldp.client import LOCAL_ASSUMPTIONS
from botorch_dp.optimizers.ldp.gradient_release import LocalRelease
from botorch_dp.optimizers.ldp.server import LDPBOServer, check_start
from botorch_dp.optimizers.ldp.step_sizes import StepSchedule
from botorch_dp.privacy import ApproxDP, Certificate, Guarantee, SecureNoise
from botorch_dp.privacy.user_account import OneAnswerEach

Guarantees = Guarantee | Callable[[int], Guarantee]
_LONGEST_HISTORY = 512


class Stream(Protocol):
    """Users in the order of their arrival, such as a ``StreamProblem``."""

    def losses(self, step: int, X: Tensor) -> Tensor:
        """Return ``batch_shape x M`` losses at ``batch_shape x M x p`` points."""
        ...


class LDPBO:
    r"""Online optimization under local differential privacy, from losses alone.

    Every step is another user's: it evaluates its loss at a few points around the
    current parameter, turns the losses into a gradient, clips it, adds noise and sends
    it. Minimizes the expected loss of a user.

    Args:
        initial_x: Where to start: a ``p`` tensor, or ``R x p`` for R replications of
            the same experiment side by side.
        guarantee: What each user's message has to meet: one guarantee for all, or a
            function from the user's number (from 1) to its own.
        clip_norm: The bound B on a user's gradient. For losses with Mallows weights
            their gradient bound loses nothing; smaller means less noise and, where it
            cuts, bias.
        mechanism: ``"gaussian"``, ``"laplace"`` or ``"classical"``, see
            :class:`LocalRelease`.
        radius: How far from the start the minimum may be, a guess made without private
            data: for the default step sizes. One in each coordinate by default.
        step: The step sizes; by default :meth:`StepSchedule.for_noise`, for the first
            user's noise.
        mode: ``"stencil"``, ``"swc"`` or ``"swc-literal"``, see :class:`LDPBOServer`.
        half_width: Of the stencil.
        kappa: The compression budget of a dictionary.
        kernel: Of a dictionary.
        average: ``"suffix"``, ``"running"``, ``"exponential"`` or ``"last"``.
        half_life: In steps, of the exponential average.
        bounds: A ``2 x p`` box to stay in; none by default.
        surrogate: One's own choice of points, in place of ``mode``.
        generator: Seeds the noise: for experiments only.
        secure: Exact discrete noise.

    Example:
        >>> from botorch_dp import ApproxDP
        >>> from botorch_dp.problems import LinearStream
        >>> stream = LinearStream(dim=2, num_replications=3)
        >>> x = stream.initial_x.expand(3, 2)
        >>> opt = LDPBO(x, ApproxDP(2.0, 1e-3), clip_norm=stream.gradient_bound)
        >>> result = opt.run(stream, num_steps=100, progress=False)
        >>> result.average.shape, result.certificate.unit
        (torch.Size([3, 2]), 'user')
    """

    name: ClassVar[str] = "ldp-bo"
    noun: ClassVar[str] = "one loss for each point"

    def __init__(
        self,
        initial_x: Tensor,
        guarantee: Guarantees,
        clip_norm: float,
        *,
        mechanism: str = "gaussian",
        radius: float | None = None,
        step: StepSchedule | None = None,
        mode: str = "stencil",
        half_width: float | None = None,
        kappa: float | None = None,
        kernel: Kernel | None = None,
        average: str = "suffix",
        half_life: float | None = None,
        bounds: Tensor | None = None,
        surrogate: GradientSurrogate | None = None,
        generator: torch.Generator | None = None,
        secure: bool | SecureNoise = False,
    ) -> None:
        check_start(initial_x)
        if not isinstance(guarantee, Guarantee) and not callable(guarantee):
            raise InvalidArgumentError(
                "guarantee must be a PureDP, ApproxDP, GDP or RDP, or a function from "
                f"a user's number to one, got {guarantee!r}."
            )
        self._guarantee = guarantee
        make = functools.partial(
            LocalRelease,
            clip_norm=clip_norm,
            mechanism=mechanism,
            generator=generator,
            secure=secure,
        )
        # Calibrating takes longer than a step: once for each guarantee.
        self._make_release = functools.lru_cache(maxsize=256)(make)
        first = self._release_of(1)
        if step is None:
            dim = initial_x.shape[-1]
            step = StepSchedule.for_noise(
                radius=math.sqrt(dim) if radius is None else radius,
                clip_norm=first.clip_norm,
                noise_std=self._noise_std(first),
                dim=dim,
            )
        elif radius is not None:
            raise InvalidArgumentError(
                f"radius and step exclude each other, got {radius!r} and {step!r}."
            )
        self.server = LDPBOServer(
            initial_x,
            step=step,
            mode=mode,
            half_width=half_width,
            kappa=kappa,
            kernel=kernel,
            average=average,
            half_life=half_life,
            bounds=bounds,
            max_norm=math.inf,  # users are simulated: none of them is hostile
            surrogate=surrogate,
        )
        self._spent = OneAnswerEach()
        self._history: list[Step] = []
        self._stride = 1

    @property
    def x(self) -> Tensor:
        """The current parameter, ``batch_shape x p``."""
        return self.server.x

    @property
    def average(self) -> Tensor:
        """The average of the parameters so far, ``batch_shape x p``."""
        return self.server.average

    @property
    def num_steps(self) -> int:
        """How many users' messages were followed."""
        return self.server.num_steps

    @property
    def num_asked(self) -> int:
        """How many users were asked, or may have been before a crash."""
        return self._spent.num_users

    @property
    def history(self) -> tuple[Step, ...]:
        """Public facts about some of the steps: every other is dropped when full."""
        return tuple(self._history)

    def ask(self) -> Tensor:
        """Return where the next user has to evaluate, ``batch_shape x M x p``."""
        return self.server.surrogate.points

    def tell(self, losses: Tensor) -> None:
        """Take a step with the next user, who is never asked again.

        Args:
            losses: Its private losses at the points of :meth:`ask`: a
                ``batch_shape x M`` tensor.
        """
        points = self.server.surrogate.points
        self._check("losses", losses, points.shape[:-1])
        self._step(self.server.surrogate.gradient(losses.detach()))

    def run(
        self,
        stream: Stream,
        num_steps: int,
        *,
        progress: bool = True,
        checkpoint: str | os.PathLike[str] | None = None,
        checkpoint_every: int = 1000,
    ) -> OptimizationResult:
        """Ask and tell ``num_steps`` more users.

        Args:
            stream: The users, from number ``num_asked + 1`` on.
            num_steps: How many.
            progress: Whether to show a progress bar.
            checkpoint: A file that is written every so many steps. If it exists, the
                run goes on from there until there were ``num_steps`` in all. If the
                process was killed, users who may have answered since are not asked
                again: their messages are lost, and the stream needs so many users more.
            checkpoint_every: How many steps.
        """
        check_count("num_steps", num_steps)
        check_count("checkpoint_every", checkpoint_every)
        last = self.num_steps + num_steps
        if checkpoint is not None and os.path.exists(checkpoint):
            self.load_state_dict(read_checkpoint(checkpoint, self.x.device))
            last = max(num_steps, self.num_steps)
        with tqdm(
            total=last,
            initial=self.num_steps,
            desc=self.name,
            unit="user",
            disable=not progress,
        ) as bar:
            while self.num_steps < last:
                count = min(checkpoint_every, last - self.num_steps)
                if checkpoint is not None:
                    self._write(checkpoint, ahead=count)
                try:
                    for _ in range(count):
                        self._visit(stream)
                except BaseException:  # an interruption loses nobody's answer
                    if checkpoint is not None:
                        self._write(checkpoint, ahead=0)
                    raise
                bar.update(count)
        if checkpoint is not None:
            self._write(checkpoint, ahead=0)
        return self.result()

    def _visit(self, stream: Stream) -> None:
        self.tell(stream.losses(self.num_asked + 1, self.ask()))

    def _step(self, private_gradients: Tensor) -> None:
        """Clip, charge, add noise, then follow (Algorithm 1, lines 10 and 11)."""
        release = self._release_of(self.num_asked + 1)
        message = self._message(release, private_gradients)
        self.server.follow(message)
        self._record(self._noise_std(release))

    def _message(self, release: LocalRelease, private_gradients: Tensor) -> Tensor:
        return release(
            private_gradients,
            ledger=self._spent,
            batch_dims=private_gradients.dim() - 1,
        )

    def _noise_std(self, release: LocalRelease) -> float:
        return release.noise_std

    def _release_of(self, user: int) -> LocalRelease:
        guarantee = self._guarantee
        if not isinstance(guarantee, Guarantee) and callable(guarantee):
            guarantee = guarantee(user)
        return self._make_release(guarantee)

    def _cost_of(self, num_users: int) -> OneAnswerEach:
        """Return what the answers of the first users cost by the settings."""
        cost, same_for_all = OneAnswerEach(), isinstance(self._guarantee, Guarantee)
        for user in range(1, 1 + (min(num_users, 1) if same_for_all else num_users)):
            self._release_of(user).charge(cost, size=self.x.shape[-1])
        return cost

    def _record(self, noise_std: float) -> None:
        number = self.num_steps
        if number % self._stride:
            return
        surrogate, num_points = self.server.surrogate, None
        if self.server.mode != "stencil":  # whose number never changes
            num_points = tuple(surrogate.num_points.flatten().tolist())
        num_evaluations = number * surrogate.points.shape[-2]
        self._history.append(
            Step(number, self.x, num_evaluations, noise_std, num_points=num_points)
        )
        if len(self._history) == _LONGEST_HISTORY:
            self._history = self._history[1::2]
            self._stride *= 2

    def result(self) -> OptimizationResult:
        """Return what has been found so far, with its certificate."""
        if not self.num_steps:
            raise OptimizerStateError("No step has been taken: call run(), or ask().")
        return OptimizationResult(
            x=self.x,
            average=self.average,
            history=self.history,
            certificate=self.certificate(),
        )

    def certificate(self) -> Certificate:
        """Return what is guaranteed to every user: to the worst off among them."""
        if self.num_steps > self.num_asked:
            raise OptimizerStateError(
                f"The server has taken {self.num_steps} steps with {self.num_asked} "
                "answers: its state is of another run, of which nothing is known."
            )
        replications = self.x.shape[:-1].numel()
        deltas = [1e-3, 1e-5, 1e-7]
        if isinstance(self._guarantee, ApproxDP):
            deltas.append(self._guarantee.delta)
        each = (
            ()
            if replications == 1
            else (f"in each of {replications} replications by itself",)
        )
        return self._spent.certificate(
            deltas=sorted(set(deltas), reverse=True),
            assumptions=(
                *LOCAL_ASSUMPTIONS,
                "every user answers once; of users with different guarantees, the "
                "weakest is stated",
                *each,
            ),
            parameters={
                **{k: v for k, v in self.settings().items() if k != "bounds"},
                "users": self.num_asked,
            },
        )

    def settings(self) -> dict[str, Any]:
        """Return the public parameters, as plain values."""
        first = self._release_of(1)
        guarantee = self._guarantee
        return {
            **self.server.settings(),
            "method": self.name,
            "clip_norm": first.clip_norm,
            "mechanism": first.kind,
            "asked for": (
                repr(guarantee)
                if isinstance(guarantee, Guarantee)
                else "a function of the user's number"
            ),
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the state, which may be published."""
        return {
            "settings": self.settings(),
            "server": self.server.state_dict(),
            "spent": self._spent.state_dict(),
            "history": [vars(step) for step in self._history],
            "stride": self._stride,
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a state of an optimizer with the same settings.

        Raises:
            OptimizerStateError: If it is not such a state; nothing is changed then.
        """
        try:
            state = copy.deepcopy(dict(state_dict))
            theirs, ours = state["settings"], self.settings()
            for key in ours:
                if theirs[key] != ours[key]:
                    raise ValueError(f"{key}={theirs[key]!r} there, {ours[key]!r} here")
            spent = OneAnswerEach.from_state_dict(state["spent"])
            stride = check_count("stride", state["stride"])
            steps = int(state["server"]["num_steps"])
            if steps > spent.num_users:
                raise ValueError(f"{steps} steps with {spent.num_users} answers")
            history = [
                Step(**{**step, "x": step["x"].to(self.x)}) for step in state["history"]
            ]
            replications = self.x.shape[:-1].numel()
            if any(
                step.x.shape != self.x.shape
                or (step.num_points and len(step.num_points) != replications)
                for step in history
            ):
                raise ValueError("a history of another shape")
        except Exception as error:
            raise OptimizerStateError(
                f"state_dict is not one of {type(self).__name__}: {error!r}."
            ) from error
        self.server.load_state_dict(state["server"])
        spent.merge(self._spent)
        # What a state says of its costs may have been edited: answers cost no less than
        # this optimizer's own.
        spent.merge(self._cost_of(spent.num_users))
        # Seeded noise goes on where it was, so that none is used twice.
        for _ in range(self.num_asked, spent.num_users):
            self._release_of(1).skip(self.x)
        self._spent, self._history, self._stride = spent, history, stride

    def _write(self, path: str | os.PathLike[str], ahead: int) -> None:
        """Write the state, and that the next users were asked before the next one.

        Should the process be killed, they may have answered, and have paid.
        """
        state, spent = self.state_dict(), self._spent.copy()
        for user in range(self.num_asked + 1, self.num_asked + ahead + 1):
            self._release_of(user).charge(spent, size=self.x.shape[-1])
        state["spent"] = spent.state_dict()
        write_checkpoint(path, state)

    def _check(self, name: str, value: Tensor, shape: torch.Size) -> None:
        check_private_tensor(name, value)
        if value.shape != shape:
            raise InvalidArgumentError(
                f"{name} must have shape {' x '.join(map(str, shape))}, {self.noun}, "
                f"got {tuple(value.shape)}."
            )
        if value.dtype != self.x.dtype or value.device != self.x.device:
            raise InvalidArgumentError(
                f"{name} must be {self.x.dtype} on {self.x.device}, got {value.dtype} "
                f"on {value.device}."
            )
