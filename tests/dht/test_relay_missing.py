"""A machine without py-libp2p is told what to install, before anything is started."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from dht import relay_process
from dht.relay_process import RelayConfig, RelayProcess
from protocols.errors import EnvironmentFault

if TYPE_CHECKING:
    from pathlib import Path


def test_without_the_extra_one_line_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_process, "find_spec", lambda _: None)
    relay = RelayProcess(RelayConfig(tmp_path / "key", ("/ip4/127.0.0.1/tcp/0",)))
    with pytest.raises(EnvironmentFault, match="needs libp2p, which is not installed") as caught:
        asyncio.run(relay.start())
    assert caught.value.remedy == "pip install 'murmuration[lighthouse]'"
    assert relay.pid is None
