"""``python -m peer`` is ``murmur``."""

from __future__ import annotations

from .cli import main

main()
