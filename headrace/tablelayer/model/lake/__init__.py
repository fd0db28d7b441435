"""The lake in words: how far it is, and a plain topic's table there."""
