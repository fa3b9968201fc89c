"""What every field that dynbench writes or prints means: tables in YAML, and their page, `results/FIELDS.md`.

Adding a field: a line in the table of its document, `path: TYPE[, UNIT][, optional] - meaning`, or, where the fields of
the document are `from` a class, the field's docstring there; then `python -m dynbench.fields > results/FIELDS.md`. The
contract test in `tests/contract/test_fields.py` says which lines are missing.

A path is dotted; `[]` stands for the items of a list, `<name>` for any key. A type is one of `TYPES`, the name of
another document, or `array of` one of these; `or null` follows where the value may be null. The unit is that of the
name's ending (`_ms`, `_mb`, …) unless it is given. An optional field is not always there; the meaning says when it is.
"""
