"""The round: a deterministic state machine, statements and bytes in, effects out (protocol.md 5).

A file per phase: ``roster`` (who), ``exchange`` (parts to reducers, Grams), ``reduction`` (weights,
results), ``sealing`` (proposal, votes), and ``machine``, which puts them in order.
"""
