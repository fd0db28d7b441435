"""Checks of the English in docstrings, comments, messages and Markdown. `python -m prose` prints what to rewrite."""
