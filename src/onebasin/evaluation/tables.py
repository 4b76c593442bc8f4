"""Tables of results as text and as HTML: a heading, then rows of cells."""

from collections.abc import Sequence
from html import escape


def text_table(rows: Sequence[Sequence[str]], narrowest: int = 0) -> str:
    """Rows as aligned columns, the first to the left and the others to the right."""
    columns = enumerate(zip(*rows, strict=True))
    wide = [max(narrowest if i else 0, *map(len, column)) for i, column in columns]
    return "\n".join(
        "  ".join([row[0].ljust(wide[0]), *map(str.rjust, row[1:], wide[1:])]).rstrip()
        for row in rows
    )


def html_table(rows: Sequence[Sequence[str]]) -> str:
    """Rows as an HTML table, the first as its heading.

    >>> html_table([("", "nll"), ("q<0>", "0.12")])
    '<table><tr><th></th><th>nll</th></tr><tr><td>q&lt;0&gt;</td><td>0.12</td></tr></table>'
    """
    lines = (
        "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in row)
        for tag, row in zip(["th", *["td"] * (len(rows) - 1)], rows, strict=True)
    )
    return f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"
