"""Every error of the project, named after whose fault it is.

    MurmurError
    ├── LocalError        this machine is in a state where the request makes no sense (a bug, or too early)
    ├── RemoteError       a peer sent something that no honest peer sends; names the peer
    ├── TransportError    a connection broke, was refused or ran out of time; nobody lied
    ├── ConfigError       usage, manifest or configuration (exit code 2)
    └── EnvironmentFault  this machine lacks something: port, disk, home, corpus, key (exit code 5)

Foreign exceptions are mapped to these where the foreign library is called.
"""

from __future__ import annotations

LINE = 1000
"""Characters of an error."""


def one_line(text: str) -> str:
    """Fit to be printed, whoever wrote parts of it: no line ends, no terminal's control codes, not without end."""
    return printable(text if len(text) <= LINE else f"{text[:LINE]}…")


def printable(text: str) -> str:
    """The text without line ends and without what could steer a terminal."""
    return text if text.isprintable() else "".join(each if each.isprintable() else "?" for each in text)


class MurmurError(Exception):
    """Base of all expected errors; ``str()`` is one line for a person, ``remedy`` says what to do."""

    def __init__(self, text: str, *, remedy: str = "") -> None:
        super().__init__(one_line(text))
        self.remedy = one_line(remedy)


class LocalError(MurmurError):
    """This machine asked for something that its own state does not allow."""


class RemoteError(MurmurError):
    """A peer broke the protocol. Raised only where bytes are received and parsed."""

    def __init__(self, peer: str, text: str) -> None:
        super().__init__(f"{peer}: {text}")
        self.peer = peer
        self.text = one_line(text)


class TransportError(MurmurError):
    """A connection could not be made, broke, or missed its deadline."""

    def __init__(self, peer: str, text: str) -> None:
        super().__init__(f"{peer}: {text}")
        self.peer = peer


class ConfigError(MurmurError):
    """Wrong usage, manifest or configuration: the person at the keyboard can mend it."""


class EnvironmentFault(MurmurError):
    """The machine lacks something (port, disk, home, corpus, key); carries a remedy."""
