"""Pure bytes <-> frozen values. Every limit on what a stranger may send is checked here, once."""
