"""No deadline for a single example of a property: the first one of a kernel compiles it, and a machine may be busy."""

from hypothesis import settings

settings.register_profile("headrace", deadline=None)
settings.load_profile("headrace")
