"""DP-FTS-DE and votes on Flower: the same agents and servers, on many machines.

The client sides (:mod:`botorch_dp.integrations.flower.client_app` and
:mod:`~botorch_dp.integrations.flower.vote_client_app`) import torch, numpy and flwr
only, because a ``flower-supernode`` starts a new Python for every message. Without a
trusted server (:mod:`~botorch_dp.integrations.flower.secure_client_app`), agents draw
noise, so they import the privacy core as well.
"""

from typing import TYPE_CHECKING

from botorch_dp._imports import import_extra, lazy_imports

import_extra("flwr", extra="federated", purpose="A deployed federation")

if TYPE_CHECKING:
    from botorch_dp.integrations.flower.agent_store import private_best
    from botorch_dp.integrations.flower.app_folder import write_app
    from botorch_dp.integrations.flower.settings import DeploymentSettings
    from botorch_dp.integrations.flower.vote_settings import VoteSettings

__all__ = ["DeploymentSettings", "VoteSettings", "private_best", "write_app"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_imports(__name__)
