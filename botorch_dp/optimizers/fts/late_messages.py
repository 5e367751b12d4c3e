r"""The last vectors of agents that answer late: rounds that wait for nobody.

A server may use an agent's vector of an earlier round until a new one arrives. A row is
then still a function of this agent's data, its own coins and the broadcasts, and it is
clipped and weighted as before. Each broadcast has at most one row of each agent. So
sensitivity, cost and certificate are the same, whoever is late. The proof is in
``docs/theory/changing_federations.md``.

The buffer is private: it contains vectors of agents.
"""

import torch
from torch import Tensor

from botorch_dp._validation import check_count


class LastMessages:
    """The last vector of each agent, for some rounds.

    Args:
        num_agents: The number N of agents, present or not.
        max_age: For how many rounds a vector counts after the one it was made in; 0
            if an agent that does not answer counts as zero at once.

    Example:
        >>> late = LastMessages(2, max_age=1)
        >>> rows = torch.tensor([[1.0], [2.0]])
        >>> late.update(rows, torch.tensor([True, True])).T
        tensor([[1., 2.]])
        >>> late.update(10 * rows, torch.tensor([True, False])).T
        tensor([[10.,  2.]])
        >>> late.update(20 * rows, torch.tensor([True, False])).T
        tensor([[20.,  0.]])
    """

    def __init__(self, num_agents: int, max_age: int) -> None:
        self.num_agents = check_count("num_agents", num_agents)
        self.max_age = check_count("max_age", max_age, minimum=0)
        self._rows: Tensor | None = None
        self._ages: Tensor | None = None

    def update(self, private_messages: Tensor, where: Tensor | None) -> Tensor:
        """Take the vectors of a round, and return the rows that count in it.

        Args:
            private_messages: An ``N x M`` tensor.
            where: An ``N`` tensor of booleans: whose vectors have arrived; all if None.
                The rows of the others are ignored.

        Returns:
            An ``N x M`` tensor: private. A row is zero if there is none that is new
            enough.
        """
        if where is None:
            where = torch.ones_like(private_messages[:, 0], dtype=torch.bool)
        arrived = where.unsqueeze(-1)
        if self._rows is None or self._ages is None:
            self._rows = torch.zeros_like(private_messages)
            self._ages = torch.full_like(where, self.max_age, dtype=torch.int64)
        rows = torch.where(arrived, private_messages, self._rows)
        ages = torch.where(where, 0, self._ages + 1)
        recent = (ages <= self.max_age).unsqueeze(-1)
        self._rows = torch.where(recent, rows, torch.zeros_like(rows))
        self._ages = ages
        return self._rows.clone()

    def private_state_dict(self) -> dict[str, Tensor | None]:
        """Return the vectors and their ages: private."""
        return {"rows": self._rows, "ages": self._ages}

    def check_state_dict(self, state: dict[str, Tensor | None]) -> None:
        """Raise ValueError unless it is a state of as many agents."""
        for name in ("rows", "ages"):
            value = state[name]
            if value is not None and len(value) != self.num_agents:
                raise ValueError(f"late {name} of {len(value)} agents")

    def load_private_state_dict(
        self, state: dict[str, Tensor | None], device: torch.device | str
    ) -> None:
        """Go on from :meth:`private_state_dict`."""
        rows, ages = state["rows"], state["ages"]
        self._rows = None if rows is None else rows.to(device, copy=True)
        self._ages = None if ages is None else ages.to(device, copy=True)
