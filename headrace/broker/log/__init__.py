"""The log of one partition: segments, indexes, recovery, producer state, leader epochs, retention."""
