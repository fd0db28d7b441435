"""The parts of one broker: each module assembles one of them. `broker.server` states their order."""
