"""The typed configuration shared by all commands."""
