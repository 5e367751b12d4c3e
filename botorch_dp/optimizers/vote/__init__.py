"""A private vote: many agents choose one of several candidates together."""
