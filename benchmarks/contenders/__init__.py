"""The methods of the arena: ours, private alternatives, and ones without privacy."""

from torch import Tensor

from benchmarks.contenders.base import (
    ALTERNATIVE,
    NOT_PRIVATE,
    OURS,
    Contender,
    Run,
)
from benchmarks.contenders.choices import NOISES, noisy_choice
from benchmarks.contenders.evolution import evolution
from benchmarks.contenders.noisy_bo import noisy_bo, noisy_turbo
from benchmarks.contenders.not_private import log_ei, random_search, tpe
from benchmarks.contenders.ours import (
    dp_gibo,
    minimize,
    old_dp_gibo,
    private_bo,
)
from benchmarks.contenders.selection import private_selection, sparse_vector
from benchmarks.contenders.zeroth_order import spsa, two_point
from benchmarks.problems.arena_tasks import ArenaTask

NO_SEARCH = "no search"


def no_search(task: ArenaTask, epsilon: float, seed: int) -> Tensor:
    """Return the start."""
    return task.start


_ALTERNATIVES: dict[str, Run] = {NO_SEARCH: no_search}
for _count in (200, 1000):
    for _name, _noise in NOISES.items():
        _label = f"{_name} {_count}"
        _ALTERNATIVES[_label] = noisy_choice(_label, _noise, _count)
_ALTERNATIVES |= {
    "private selection": private_selection,
    "sparse vector": sparse_vector,
    "noisy BO": noisy_bo,
    "noisy TuRBO": noisy_turbo,
    "SPSA": spsa,
    "two-point": two_point,
    "evolution": evolution,
}

_ALL = [
    Contender("minimize", OURS, minimize),
    Contender("dp-gibo (old)", OURS, old_dp_gibo),
    Contender("dp-gibo", OURS, dp_gibo),
    Contender("private-bo", OURS, private_bo(adaptive=False)),
    Contender("peek then pick", OURS, private_bo(adaptive=True)),
    *(Contender(name, ALTERNATIVE, run) for name, run in _ALTERNATIVES.items()),
    Contender("random search", NOT_PRIVATE, random_search),
    Contender("TPE", NOT_PRIVATE, tpe),
    Contender("LogEI", NOT_PRIVATE, log_ei, most_seeds=2, most_dims=10),
]
CONTENDERS: dict[str, Contender] = {contender.name: contender for contender in _ALL}

__all__ = [
    "ALTERNATIVE",
    "CONTENDERS",
    "NOT_PRIVATE",
    "NO_SEARCH",
    "OURS",
    "Contender",
    "no_search",
]
