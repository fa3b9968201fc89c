"""The command line: one thin file per command; click and rich live only here."""
