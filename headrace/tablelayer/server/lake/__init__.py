"""Lake tiering: granting rounds, and the lake's progress."""
