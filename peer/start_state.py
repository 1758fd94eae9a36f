"""Where a run begins: freshly drawn parameters, or the sealed state of another run, which it names by hash.

The blob of a start state is parameters, then outer momentum, as little-endian float32: exactly the bytes over which
the old seal's state root is, so that seal 0 of the new run has the same one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from blake3 import blake3

from protocols.errors import ConfigError, EnvironmentFault
from protocols.manifest import Manifest, ShardEntry, Start
from protocols.outer import state_chunks

from .models import initial_vector, parameter_count

if TYPE_CHECKING:
    from protocols.round.chain import Head
    from protocols.round.effects import Vector

    from .blobs import BlobStore

VALUE_BYTES = 4


def fresh_state(size: str, context: int, seed: int) -> tuple[Vector, Vector]:
    """(parameters, outer momentum), float32 [parameters] each, of a run that begins from nothing but its manifest.

    Every bit counts, for seal 0 is made of them: the momentum is +0.0 throughout.
    """
    params = initial_vector(size, context, seed)
    return params, np.zeros_like(params)


def initial_state(manifest: Manifest, store: BlobStore) -> tuple[Vector, Vector]:
    """(parameters, outer momentum), float32 [parameters] each, that round 1 of the run begins from.

    Raises ConfigError when the manifest's start state cannot be one of its model, EnvironmentFault when its blob is
    not in ``store``.
    """
    model = manifest.model
    values = parameter_count(model.size, model.context)
    if manifest.start is None:
        return fresh_state(model.size, model.context, manifest.run.seed)
    if manifest.start.bytes != 2 * values * VALUE_BYTES:
        raise ConfigError(
            f"the run starts from a state of {manifest.start.bytes} bytes, and its model has {values} parameters",
            remedy="ask its founder for a manifest of the old run's model",
        )
    entry = ShardEntry("start", manifest.start.bytes, manifest.start.hash)
    path = store.path(entry)  # its size and hash are checked before it is read
    if path is None:
        raise EnvironmentFault(
            f"the state that the run starts from is not in this home ({manifest.start.hash[:16]})",
            remedy="leave the daemon running with --join: others of the run have it",
        )
    try:
        both = np.fromfile(path, dtype="<f4", count=2 * values).astype(np.float32, copy=False)
    except OSError as error:
        raise EnvironmentFault(f"cannot read {path}: {error.strerror}", remedy="make it readable") from error
    if len(both) != 2 * values or not np.isfinite(both).all():
        raise EnvironmentFault(f"{path} holds no state of this model", remedy="remove it: it is fetched again")
    return both[:values], both[values:]


def keep_state(store: BlobStore, run: bytes, head: Head, state: tuple[Vector, Vector]) -> Start:
    """Put ``state`` of ``head`` of the run ``run`` into the store; what a successor's manifest says of it.

    Raises ConfigError above the store's cap, EnvironmentFault.
    """
    whole = blake3()
    size = 0
    for chunk in state_chunks(*state):
        whole.update(chunk)
        size += len(chunk)
    start = Start(run.hex(), head.round, head.seal.hex(), size, whole.hexdigest())
    entry = ShardEntry("start", size, start.hash)
    if store.path(entry) is None:
        with store.write(entry) as writer:
            writer.restart()
            for chunk in state_chunks(*state):
                writer.append(bytes(chunk))
            writer.finish()
    return start
