"""One run, the best of several, and errors that tell of no other run.

An error of the user's function counts as a run with the highest score: it is selected,
and passing it on is then the release. So it costs no more than a result, as long as it
depends on private data only through what its run released. What it must not do is tell
of the others, so it leaves without the frames that know them.
"""

import contextlib
import inspect
import math
import os
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any

from torch import Tensor

from botorch_dp._validation import describe_private
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.optimizers.selection.meter import RunMeter
from botorch_dp.optimizers.selection.randomness import seed_globals, silence
from botorch_dp.privacy.entries import check_plan
from botorch_dp.privacy.events import PrivacyEvent

Base = tuple[tuple[PrivacyEvent, int], ...]
# The condition of a ledger entry whose runs had no account.
CLAIMED = (
    "that a run costs at most its base, which is the claim of the caller: "
    "train_and_score took no account that could check it"
)


@dataclass(frozen=True)
class RunTerms:
    """What all runs of a selection have in common.

    Attributes:
        train_and_score: The user's function.
        takes_account: Whether it takes the account of its run.
        base: What one run may release.
        adjacency: The neighbouring data sets for which the costs are stated.
        unit: Who is protected.
        seeded: Whether seeded noise is accepted.
        process: The process that makes the selection.
    """

    train_and_score: Callable[..., Any]
    takes_account: bool
    base: Base
    adjacency: str
    unit: str
    seeded: bool
    process: int


@dataclass(frozen=True, repr=False)
class RunOutcome:
    """What one run returned. All of it is private, unless it is selected."""

    x: Any
    score: float = -math.inf
    model: Any = None
    error: BaseException | None = None


def make_run(
    terms: RunTerms,
    x: Any,
    seed: int,
    *,
    catch: type[BaseException] = Exception,
) -> RunOutcome:
    """Train and score one candidate.

    Args:
        terms: What all runs have in common.
        x: The candidate.
        seed: The seed of the global generators, if this is another process.
        catch: The errors that become the outcome of the run.
    """
    is_elsewhere = os.getpid() != terms.process
    if is_elsewhere:
        seed_globals(seed)
    meter = RunMeter(
        terms.base, adjacency=terms.adjacency, unit=terms.unit, seeded=terms.seeded
    )
    # The selection has silenced its own process.
    quiet = silence() if is_elsewhere else contextlib.nullcontext()
    try:
        if terms.takes_account:
            with quiet:
                returned = terms.train_and_score(x, meter)
            if not meter.is_used:
                raise InvalidArgumentError(
                    "train_and_score must charge its account: pass it to the "
                    "mechanisms of the run as ledger=, or write a function of x alone "
                    "if the run pays in another way."
                )
        else:
            with quiet:
                returned = terms.train_and_score(x)
        score, model = _score_and_model(returned)
        return RunOutcome(x, score, model)
    except catch as error:
        # The first frame is this one; the next is the user's.
        own = None if error.__traceback__ is None else error.__traceback__.tb_next
        if is_elsewhere and own is not None:  # tracebacks stay in their process
            error.add_note("".join(["In a worker:\n", *traceback.format_tb(own)]))
        return RunOutcome(x, error=error.with_traceback(own))
    finally:
        meter.close()


def check_base(
    base: PrivacyEvent | Sequence[tuple[PrivacyEvent, int]], adjacency: str
) -> Base:
    """Return the releases of one run: an event, or pairs of an event and a count."""
    releases = [(base, 1)] if isinstance(base, PrivacyEvent) else base
    try:
        checked = check_plan(releases, adjacency)
    except (TypeError, ValueError) as error:
        if isinstance(error, InvalidArgumentError):
            raise
        checked = ()
    if not checked:
        raise InvalidArgumentError(
            "base must be an event, or a list of pairs of an event and how many "
            f"releases of a run have that cost, got {base!r}."
        )
    return checked


class BestRun:
    """Keeps the best of the runs that it is offered, and drops the others."""

    def __init__(self) -> None:
        self.outcome: RunOutcome | None = None
        self._rank: tuple[bool, float, float] | None = None

    def offer(self, outcome: RunOutcome, tie: float) -> None:
        """Keep a run if it is better than all before.

        Args:
            outcome: The run.
            tie: An independent uniform number, which decides between equal scores.
        """
        rank = (outcome.error is not None, outcome.score, tie)
        if self._rank is None or rank > self._rank:
            self.outcome, self._rank = outcome, rank


def takes_account(train_and_score: Callable[..., Any]) -> bool:
    """Return whether a function takes the account of its run as second argument.

    It does if its second positional parameter has no default or is named ``account``.
    """
    try:
        parameters = list(inspect.signature(train_and_score).parameters.values())
    except (TypeError, ValueError):  # some functions written in C
        return False
    positional = [
        one
        for one in parameters
        if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
    ]
    if len(positional) < 2:
        return False
    second = positional[1]
    return second.default is second.empty or second.name == "account"


def user_traceback(error: BaseException, caller: FrameType) -> TracebackType | None:
    """Return the part of a traceback that begins in the user's code, and clear ours.

    Args:
        error: What was raised, caught in ``caller``.
        caller: The frame in which the traceback ends, which knows nothing private.
    """
    package = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
    own, ours = error.__traceback__, []
    while own is not None and own.tb_frame.f_code.co_filename.startswith(package):
        ours.append(own.tb_frame)
        own = own.tb_next
    behind = None if own is None else own.tb_frame.f_back
    while behind is not None and behind is not caller:
        ours.append(behind)
        behind = behind.f_back
    for frame in ours:
        # A frame keeps its variables as long as an error refers to it. One that still
        # runs (the caller, or the loop of a thread) cannot be cleared.
        with contextlib.suppress(RuntimeError):
            frame.clear()
    return own


def _score_and_model(returned: Any) -> tuple[float, Any]:
    """Return the score and the model; a score that is not a number is the lowest."""
    is_pair = isinstance(returned, tuple) and len(returned) == 2
    score, model = returned if is_pair else (returned, None)
    if isinstance(score, Tensor):
        score = score.detach()
    try:
        number = float(score)
    except (TypeError, ValueError, RuntimeError):
        raise InvalidArgumentError(
            "train_and_score must return a score or a pair of a score and a model, "
            f"where the score is one number, got {describe_private(score)}."
        ) from None
    return (-math.inf if math.isnan(number) else number), model
