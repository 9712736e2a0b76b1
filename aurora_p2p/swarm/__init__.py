"""Sans-IO machines of segment exchange: who holds, wants, sends what. Time and chance are arguments."""
