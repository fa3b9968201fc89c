"""Run folders: layout, records, store and status, provenance, atomic files."""
