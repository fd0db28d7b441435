"""No deadline for a single example: the first one of a kernel compiles it."""

from hypothesis import settings

settings.register_profile("tables", deadline=None)
settings.load_profile("tables")
