"""The state of a group as values: its members, offsets, journal records, and the events that change it. Pure."""
