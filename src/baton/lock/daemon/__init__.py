"""The lock daemon: sockets, journal and metrics around the pure core."""
