"""What every field that dynbench writes or prints means; `python -m dynbench.fields` prints the page.

A document of the tables (YAML) is `_from` what declares its fields: a class of records or measures, with their
docstrings, columns, or a registry whose classes have columns. A field that holds such a record has the document's name
as its type, unless the document is `_from` a list. It has the fields of other documents `_with` it, of `DOCUMENT: FIELD
…` these alone. What nothing declares is a line in the table, `path: TYPE[, UNIT][, optional] - meaning`. The contract
test in `tests/contract/test_fields.py` says what is missing.

A path is dotted; `[]` stands for the items of a list, `<name>` for any key. A type is one of `TYPES`, the name of
another document, or `array of` one of these; `or null` follows where the value may be null. The unit is that of the
name's ending (`_ms`, `_mb`, …) unless it is given. An `object of TYPE` has values of that type by any name. An
optional field is not always there; the meaning says when it is.
"""
