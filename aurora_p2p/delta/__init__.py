"""Arrays in, bytes out: which bits changed, as few bytes as possible. No clock, no sockets."""
