"""A private run in the virtual swarm: whoever is on the list enters, and nobody else."""

from __future__ import annotations

from tests.swarm.crowd import identities, run


def test_a_key_on_the_list_enters_a_closed_run_and_no_other_does() -> None:
    guest, stranger = (each.peer for each in identities(5)[3:])
    outcome = run(3, 3, newcomers=2, open=False, allowed=frozenset([guest]))
    assert len({*map(tuple, outcome.chains()[:3])}) == 1
    last = outcome.peers[0].sealed[-1].head.table
    assert guest in last.members and last.stands(guest)
    assert stranger not in last.members
