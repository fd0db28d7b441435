"""The documentation as a site: what is written in `docs/`, the READMEs of the components, and references made from the
declarations, which are made anew each time and kept nowhere.
"""
