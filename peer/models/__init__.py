"""Built-in architectures, by name. A manifest can choose one, never bring code.

``layout`` needs no torch; ``gpt`` does, and only the trainer and the measuring of losses import it.
"""

from __future__ import annotations

from .layout import SIZES, VOCABULARY, initial_vector, parameter_count

KINDS = ("gpt",)
"""Values of the manifest's ``model.kind``."""

__all__ = ["KINDS", "SIZES", "VOCABULARY", "initial_vector", "parameter_count"]
