"""Finding and reaching peers: p2pd, streams, the directory, signed records."""
