"""How many agents add their share of the noise and keep it secret."""

import math

from botorch_dp._validation import check_count
from botorch_dp.exceptions import InvalidArgumentError


def check_num_honest(num_honest: int | None, num_agents: int) -> int:
    """Return the number H of honest agents: by default two thirds of all.

    Example:
        >>> check_num_honest(None, 20)
        14
    """
    if num_honest is None:
        return math.ceil(2 * num_agents / 3)
    if check_count("num_honest", num_honest) > num_agents:
        raise InvalidArgumentError(
            f"num_honest must be at most the number of agents, {num_agents}, got "
            f"{num_honest}."
        )
    return num_honest
