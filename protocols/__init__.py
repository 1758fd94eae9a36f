"""The protocol as pure functions and machines: bytes and values in, values out.

Nothing here opens a socket or a file, reads a clock or draws a random number.
"""
