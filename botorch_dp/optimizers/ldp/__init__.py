"""LDP-BO: local privacy on a stream of users who answer once."""
