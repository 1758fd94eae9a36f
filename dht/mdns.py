"""Announces this peer in the networks it is at, and hears who else is announced there: mDNS and DNS-SD by ``zeroconf``.

The only importer of ``zeroconf``, which is loaded when it is used. What is heard is kept in zeroconf's cache, which has
a bound of its own (10,000 records, from 0.150 on), and is looked at from time to time: so nothing that a flood of
announcements pushed aside is lost for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import random
import secrets
from typing import TYPE_CHECKING, Any

from .lan import MOST_ANNOUNCEMENTS, Announcement

if TYPE_CHECKING:
    import ipaddress
    from collections.abc import Callable, Mapping, Sequence

SERVICE = "_murmur._tcp.local."
TTL_S = 120
"""For how long others believe what they have heard: a peer that was killed says no goodbye."""
MOST_ASKED = 8
"""Services of which only the name was heard and that are asked for the rest in one look: the whole network hears it."""
RESOLVE_S = 3.0
"""For the rest of a service of which only the name was heard."""
CLOSE_S = 3.0
"""For the goodbye, which is said three times."""


class Mdns:
    """One announcement and one ear, from ``open`` to ``close``."""

    def __init__(self) -> None:
        self._zeroconf: Any = None
        self._browser: Any = None
        self._own = ""
        self._saying: asyncio.Future[Any] | None = None
        self._draw = random.Random()

    async def open(
        self, here: Sequence[ipaddress.IPv4Interface], port: int, words: Mapping[str, str], heard: Callable[[], None]
    ) -> None:
        """Begin on these interfaces; ``heard`` is called when there is news. Raises OSError where that cannot be.

        The service has a random name, and tells no host's name.
        """
        logging.getLogger("zeroconf").setLevel(logging.CRITICAL)  # neighbours could fill the log
        library = await asyncio.to_thread(importlib.import_module, "zeroconf.asyncio")
        addresses = [str(each.ip) for each in here]
        token = secrets.token_hex(8)
        self._own = f"{token}.{SERVICE}"
        try:
            self._zeroconf = library.AsyncZeroconf(interfaces=addresses)
            info = library.AsyncServiceInfo(
                SERVICE,
                self._own,
                port,
                properties=dict(words),
                server=f"{token}.local.",
                host_ttl=TTL_S,
                other_ttl=TTL_S,
                parsed_addresses=addresses,
            )
            # cooperating: nobody has this name, and else a neighbour who claims it could keep this peer silent
            self._saying = await self._zeroconf.async_register_service(info, cooperating_responders=True)

            def told(**_: object) -> None:
                heard()

            self._browser = library.AsyncServiceBrowser(self._zeroconf.zeroconf, SERVICE, handlers=[told])
        except BaseException as error:
            await self.close()
            if isinstance(error, OSError) or not isinstance(error, Exception):
                raise
            raise OSError(f"{type(error).__name__}: {error}") from error  # zeroconf raises what it likes

    async def look(self) -> list[Announcement]:
        """What is announced now, ``MOST_ANNOUNCEMENTS`` at most."""
        if self._zeroconf is None:
            return []
        library, zeroconf = importlib.import_module("zeroconf.asyncio"), self._zeroconf.zeroconf
        pointers = zeroconf.cache.async_entries_with_name(SERVICE)
        names = {alias for each in pointers if (alias := getattr(each, "alias", self._own)) != self._own}
        # who announces itself says all at once, so that a mere name is of less worth and is asked about more rarely
        whole = sorted(name for name in names if zeroconf.cache.async_entries_with_name(name))
        mere = sorted(names.difference(whole))
        drawn = self._draw.sample(whole, min(len(whole), MOST_ANNOUNCEMENTS - MOST_ASKED))
        drawn += self._draw.sample(mere, min(len(mere), MOST_ASKED))
        read = await asyncio.gather(*(_resolve(library, zeroconf, name) for name in drawn))
        return [each for each in read if each is not None]

    async def close(self) -> None:
        """Say goodbye and end. Safe to call twice."""
        zeroconf, browser, saying = self._zeroconf, self._browser, self._saying
        self._zeroconf = self._browser = self._saying = None
        if saying is not None:
            saying.cancel()
            await asyncio.gather(saying, return_exceptions=True)
        if zeroconf is not None:
            with contextlib.suppress(Exception):  # what it raises with its interface gone is no news
                async with asyncio.timeout(CLOSE_S):
                    if browser is not None:
                        await browser.async_cancel()
                    await zeroconf.async_close()


async def _resolve(library: Any, zeroconf: Any, name: str) -> Announcement | None:
    """A service by its name: mostly heard already, else asked for."""
    try:
        info = library.AsyncServiceInfo(SERVICE, name)
        if not info.load_from_cache(zeroconf):
            async with asyncio.timeout(RESOLVE_S + 1):
                if not await info.async_request(zeroconf, RESOLVE_S * 1000):
                    return None
        return Announcement(dict(info.properties), tuple(info.parsed_addresses()), info.port or 0)
    except Exception:  # whatever a stranger's bytes make zeroconf raise
        logging.getLogger(__name__).debug("an announcement could not be read", exc_info=True)
        return None
