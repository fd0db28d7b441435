"""The documentation as a site: the pages of `docs/` and the READMEs of the components. `references.py` makes the
reference pages from the declarations in the program, and a test holds them to it.
"""
