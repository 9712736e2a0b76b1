"""The commands that every program has: asking its daemon, its home folder, its systemd unit, its support bundle.

    program.py   what a program says of itself, so that these are written once
    daemon.py    status, why, tui, pause, resume, caps, quit      over the control socket
    home.py      where, logs, config check | show                 files only; also when no daemon runs
    units.py     install, uninstall
    support.py   support-bundle

Loads neither trio nor rich nor libp2p: what needs them is imported when it is called.
"""
