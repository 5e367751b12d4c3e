"""Local search in Ax, with its own surrogate: ``python -m examples.ax_service.search``.

It needs ``pip install 'botorch-dp[ax]'``. Nothing is private here.
"""
