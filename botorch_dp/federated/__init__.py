"""DP-FTS-DE deployed on Flower: the same agents and server, on many machines.

The client side (:mod:`botorch_dp.federated.client_app`) imports torch, numpy and flwr
only, because a ``flower-supernode`` starts a new Python for every message.
"""

from typing import TYPE_CHECKING

from botorch_dp._extras import import_extra
from botorch_dp._lazy import lazy_imports

import_extra("flwr", extra="federated", purpose="A deployed federation")

if TYPE_CHECKING:
    from botorch_dp.federated.agent_store import private_best
    from botorch_dp.federated.app_folder import write_app
    from botorch_dp.federated.settings import DeploymentSettings

__all__ = ["DeploymentSettings", "private_best", "write_app"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_imports(__name__)
