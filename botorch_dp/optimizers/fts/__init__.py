"""DP-FTS-DE: private federated Thompson sampling."""
