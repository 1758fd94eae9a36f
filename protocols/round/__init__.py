"""The round: a deterministic state machine, statements and bytes in, effects out (protocol.md 5).

``machine`` goes through the phases in order: ``gathering`` (commits), ``views`` (readys), ``rostering``, ``exchanging``
(parts, Grams), ``reducing`` (sums, results), ``voting``, ``settling``. They share one ``context`` and hold what is done
in which order; pure functions beside them hold how: ``roster``, ``exchange``, ``reduction``, ``results``, ``sealing``.
"""
