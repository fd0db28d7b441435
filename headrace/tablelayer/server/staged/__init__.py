"""Writes in two steps, staged and then committed as a whole, for engines that repeat their tasks."""
