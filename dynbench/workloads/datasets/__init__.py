"""Where samples come from, one file per source."""
