"""Text in columns."""

from collections.abc import Sequence


def table(rows: Sequence[Sequence[str]], indent: str = "") -> str:
    """Rows as left-aligned columns, the first one being the heading."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join((indent + line).rstrip() for line in lines)
