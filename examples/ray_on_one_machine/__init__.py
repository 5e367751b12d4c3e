"""A private search whose candidates are evaluated by Ray workers on this machine."""
