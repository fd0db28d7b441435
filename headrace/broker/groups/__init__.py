"""Consumer groups: membership by both protocols, committed offsets, and the coordinator that serves them.

`model` has the state, `step` and `state` the state machine, `classic` and `modern` its two protocols, `offsets` the
committed offsets, `journal` their records, `coordinator` the shell around them, `handlers` the APIs.
"""
