"""The client for programs without an event loop: the same calls, each of which waits.

A `Connection` owns one background thread with one event loop, in which the asynchronous client does everything. It
may be used from any number of threads. It belongs to the process that made it: after a fork (Spark's Python workers,
multiprocessing) the child makes its own; using the parent's raises RuntimeError instead of hanging.
"""
