"""A small study, also as a program that several processes run at the same time."""

import sys

import optuna
import torch

from botorch_dp import ApproxDP, Ledger
from botorch_dp.integrations.optuna import PrivateObjective

BUDGET = ApproxDP(epsilon=1.0, delta=1e-6)
NUM_TRIALS = 12


def suggest(trial):
    return {"x": trial.suggest_float("x", 0.0, 1.0)}


def losses(parameters, rows):
    return (rows - parameters["x"]).abs()


def records(num=100):
    return torch.linspace(0, 1, num, dtype=torch.float64, device="cpu")


def make_objective(**changes):
    settings = {
        "suggest": suggest,
        "losses": losses,
        "private_records": records(),
        "loss_range": (0.0, 1.0),
        "guarantee": BUDGET,
        "num_trials": NUM_TRIALS,
        "study_name": "study",
        **changes,
    }
    first = [settings.pop(name) for name in ("suggest", "losses", "private_records")]
    return PrivateObjective(*first, **settings)


def journal(file):
    backend = optuna.storages.journal.JournalFileBackend(file)
    return optuna.storages.JournalStorage(backend)


if __name__ == "__main__":
    ledger_file, storage_file = sys.argv[1:]
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    objective = make_objective(ledger=Ledger(ledger_file))
    study = objective.create_study(
        journal(storage_file), sampler=optuna.samplers.RandomSampler()
    )
    study.optimize(objective)
