"""What tests run on hosts of the lab: plain sockets that answer, ask and punch. Prints a line for whatever it sees.

probe.py answer PORT              tells whoever comes by TCP or UDP where they come from
probe.py ask tcp|udp ADDRESS PORT [FROM [BYTES]]
                                  prints what it is told, or the error's name; sends BYTES by TCP and gets as many
probe.py listen ADDRESS PORT FROM
                                  asks by UDP, then prints whom it hears until that is ADDRESS and PORT again
probe.py punch PORT ADDRESS PORT  waits for a line on stdin, then sends datagrams until one comes back; says when the
                                  first is sent
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import sys
import time

PATIENCE_S = 1.0
LISTEN_S = 10.0
PUNCH_S, PUNCH_EVERY_S, PUNCH_MORE = 1.2, 0.04, 5
SIZE = 8
"""Bytes of the number that says how many will follow."""


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def opened(kind: str, address: str, port: int) -> socket.socket:
    """A socket bound to a port on every address of the family of ``address``."""
    six = ":" in address
    sock = socket.socket(
        socket.AF_INET6 if six else socket.AF_INET, socket.SOCK_STREAM if kind == "tcp" else socket.SOCK_DGRAM
    )
    if six:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    if kind == "tcp":
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("::" if six else "0.0.0.0", port))
    return sock


def answer(port: int) -> None:
    """Serve for ever."""
    selector = selectors.DefaultSelector()
    for kind in ("tcp", "udp"):
        for address in ("0.0.0.0", "::"):
            sock = opened(kind, address, port)
            if kind == "tcp":
                sock.listen()
            selector.register(sock, selectors.EVENT_READ, kind)
    say("ready")
    while True:
        for key, _ in selector.select():
            sock = key.fileobj  # type: ignore[assignment]
            if key.data == "udp":
                _, whence = sock.recvfrom(2048)
                sock.sendto(place(whence).encode(), whence)
            else:
                connection, whence = sock.accept()
                with connection, contextlib.suppress(OSError):
                    connection.settimeout(10)
                    serve(connection, place(whence))
            say(f"{key.data} {place(whence)}")


def serve(connection: socket.socket, whence: str) -> None:
    """Over TCP: the place's text in a frame, and as many bytes as come."""
    expected = int.from_bytes(exactly(connection, SIZE), "big")
    exactly(connection, expected)
    connection.sendall(len(whence).to_bytes(SIZE, "big") + whence.encode() + bytes(expected))


def ask(kind: str, address: str, port: int, source: int = 0, size: int = 0) -> None:
    """One question."""
    try:
        with opened(kind, address, source) as sock:
            sock.settimeout(PATIENCE_S)
            if kind == "tcp":
                sock.connect((address, port))
                sock.settimeout(20)
                sock.sendall(size.to_bytes(SIZE, "big") + bytes(size))
                text = exactly(sock, int.from_bytes(exactly(sock, SIZE), "big")).decode()
                exactly(sock, size)
            else:
                sock.sendto(b"?", (address, port))
                text = sock.recv(2048).decode()
            say(text)
    except OSError as error:
        say(type(error).__name__)


def listen(address: str, port: int, source: int) -> None:
    """Who else gets in by the way that a question has opened."""
    with opened("udp", address, source) as sock:
        sock.settimeout(LISTEN_S)
        sock.sendto(b"?", (address, port))
        say(sock.recv(2048).decode())
        whence = ("", 0)
        while whence != (address, port):
            _, whence = sock.recvfrom(2048)
            say(place(whence))


def punch(port: int, address: str, other: int) -> None:
    """Both ends do this at the same time; prints ``ready``, ``sent``, and ``open`` or ``closed``."""
    with opened("udp", address, port) as sock:
        sock.settimeout(PUNCH_EVERY_S)
        say("ready")
        sys.stdin.readline()
        sock.sendto(b"!", (address, other))
        say("sent")
        deadline, more = time.monotonic() + PUNCH_S, PUNCH_MORE
        heard = False
        while more and time.monotonic() < deadline:
            with contextlib.suppress(OSError):  # also a refusal that a router sends back
                sock.sendto(b"!", (address, other))
                heard |= bool(sock.recv(2048))
            more -= heard  # the other end may not have heard of us yet
        say("open" if heard else "closed")


def exactly(sock: socket.socket, size: int) -> bytes:
    """So many bytes; raises ConnectionError when they end before."""
    received = bytearray()
    while len(received) < size:
        chunk = sock.recv(min(size - len(received), 1 << 16))
        if not chunk:
            raise ConnectionError("the connection ended early")
        received += chunk
    return bytes(received)


def place(whence: tuple[str, int]) -> str:
    return f"{whence[0]} {whence[1]}"


def main() -> None:
    """The command line, as above."""
    command, *rest = sys.argv[1:]
    if command == "answer":
        answer(int(rest[0]))
    elif command == "punch":
        punch(int(rest[0]), rest[1], int(rest[2]))
    elif command == "listen":
        listen(rest[0], int(rest[1]), int(rest[2]))
    else:
        ask(rest[0], rest[1], *map(int, rest[2:]))


if __name__ == "__main__":
    main()
