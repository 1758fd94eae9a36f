"""Settings that all tests share."""

from __future__ import annotations

import os

from hypothesis import settings

# A loaded machine is not a wrong answer: no deadline per example; `derandomize` keeps CI's verdict repeatable.
settings.register_profile("murmur", deadline=None, derandomize=True)
settings.load_profile("murmur")

# A person's own configuration is no part of a test.
for name in [name for name in os.environ if name.startswith("MURMUR_")]:
    del os.environ[name]
os.environ["MURMUR_CONFIG"] = os.devnull
