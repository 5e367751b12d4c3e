"""Other libraries' ways in: scikit-learn, Opacus, Optuna and Flower.

Import what you need from :mod:`botorch_dp.integrations.sklearn` (extra ``sklearn``),
:mod:`botorch_dp.integrations.opacus`, :mod:`botorch_dp.integrations.optuna` (extra
``optuna``) or :mod:`botorch_dp.integrations.flower` (extra ``federated``); nothing is
imported here.
"""
