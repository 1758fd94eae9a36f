"""Settings that all tests share."""

from __future__ import annotations

from hypothesis import settings

# A loaded machine is not a wrong answer: no deadline per example; `derandomize` keeps CI's verdict repeatable.
settings.register_profile("murmur", deadline=None, derandomize=True)
settings.load_profile("murmur")
