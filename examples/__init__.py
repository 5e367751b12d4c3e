"""Examples that are programs of their own."""
