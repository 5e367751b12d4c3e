"""Other libraries' ways in: scikit-learn (extra ``sklearn``) and Opacus.

Import what you need from :mod:`botorch_dp.integrations.sklearn` or
:mod:`botorch_dp.integrations.opacus`; nothing is imported here.
"""
