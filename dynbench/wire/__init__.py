"""What strategies talk through: collectives that are counted and timed, and where compression plugs in."""
