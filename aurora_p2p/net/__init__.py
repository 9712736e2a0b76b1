"""The only room that knows sockets, TLS and libp2p."""
