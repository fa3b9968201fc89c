"""What a file that cannot be read as asked for looks like, and what to do about it."""

from __future__ import annotations

import shlex
from pathlib import Path

_MAGIC = {
    b"PAR1": "It looks like Parquet: use --dataset parquet.",
    b"\x1f\x8b": "It looks gzipped; unpack it: gunzip -k {file}.",
    b"PK\x03\x04": "It looks like a zip archive or a spreadsheet; unpack it, or export it as CSV (--dataset csv).",
    b"\xff\xfe": "It looks like UTF-16; save it as UTF-8: iconv -f UTF-16 -t UTF-8 {file}.",
    b"\xfe\xff": "It looks like UTF-16; save it as UTF-8: iconv -f UTF-16 -t UTF-8 {file}.",
}
"""First bytes of a file to what to do about it."""
_DELIMITERS = {"\t": ("tab-separated", "tsv"), ",": ("comma-separated", "csv"), ";": ("semicolon-separated", "csv")}


def why_no_text(content: bytes, path: Path, unknown: str = "Save it as UTF-8.") -> str:
    """What to do about a file that is no UTF-8 text; `unknown` where nothing tells what else it is."""
    for magic, advice in _MAGIC.items():
        if content.startswith(magic):
            return advice.format(file=shlex.quote(str(path)))
    return unknown


def looks_like(line: str, asked: str) -> str:
    """What the first line of a file looks like, with the data set that reads it; empty where it is the one asked for.

    Args:
        line: the first line that holds something.
        asked: the data set that was asked to read it.
    """
    start = line.strip()
    if start.startswith("{") and asked != "jsonl":
        return "It looks like JSON Lines: use --dataset jsonl."
    if start.startswith("[") or start == "{":
        return (
            "It looks like one JSON document over all lines: write one object per line, like jq -c '.[]' does; an "
            "array of articles without labels is read by --dataset json."
        )
    for delimiter, (words, dataset) in _DELIMITERS.items():
        if delimiter in line:
            return "" if dataset == asked else f"It looks {words}: use --dataset {dataset}."
    return ""
