"""Consumer groups: pure state machines and their journal."""
