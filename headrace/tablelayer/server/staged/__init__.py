"""Writes in two steps, for engines that repeat their tasks: rows are staged, then committed as a whole."""
