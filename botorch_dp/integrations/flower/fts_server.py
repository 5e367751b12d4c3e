"""The server of DP-FTS-DE with the settings of a deployment."""

import torch

from botorch_dp.integrations.flower.settings import DeploymentSettings
from botorch_dp.optimizers.fts.server import DPFTSServer
from botorch_dp.privacy import Ledger


def new_server(settings: DeploymentSettings, ledger: Ledger) -> DPFTSServer:
    """Return the server of a deployment.

    Without a trusted server, each agent also has one, for its own share.
    """
    generator = None
    # Agents draw the noise if the server is not trusted, and never from a public seed.
    if settings.seed is not None and settings.trust == "server":
        generator = torch.Generator(device="cpu").manual_seed(settings.seed)
    return DPFTSServer(
        settings.federation.weights(),
        settings.federation.num_features,
        clip_norm=settings.clip_norm,
        noise_multiplier=settings.noise_multiplier,
        sampling_rate=settings.sampling_rate,
        sample_size=settings.sample_size,
        trust=settings.trust,
        num_honest=settings.num_honest,
        sensitivity=settings.sensitivity,
        num_rounds=settings.num_rounds,
        ledger=ledger,
        generator=generator,
    )
