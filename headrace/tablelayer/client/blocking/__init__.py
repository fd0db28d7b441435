"""The client for programs without an event loop: the same calls, each of which waits.

A `Connection` owns one background thread with one event loop, in which the asynchronous client runs. Any number of
threads may use it. It belongs to the process that made it: after a fork (Spark's Python workers, multiprocessing) the
child makes its own. Using the parent's raises RuntimeError instead of hanging.
"""
