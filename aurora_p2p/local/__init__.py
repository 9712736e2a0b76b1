"""Between processes of one machine: framed sockets, child processes, the boot clock. Nothing here crosses a network."""
