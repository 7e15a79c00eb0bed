"""Figures as a table, as bars in text, and as a picture."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path

Row = tuple[str, Mapping[str, float | None]]  # a figure, and its value for each relay; None: it can't

CHARTED = ("/s", "p99 ms", "KB", "of a core", ", s")
_COLOURS = ("#888888", "#1f77b4", "#bbbbbb", "#2ca02c", "#d62728")


def number(value: float | None) -> str:
    """Three digits that mean something; "-" for what a relay can't do."""
    if value is None:
        return "-"
    if value == 0:
        return "0"
    return f"{value:,.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"


def table(rows: list[Row], columns: list[str]) -> str:
    """A Markdown table. The last column is how many times the first relay's value the second one's is."""
    compared = columns[:2] if len(columns) > 1 and columns[1] != "nothing" else []
    lines = [["", *columns, *([f"{compared[1]} ÷ {compared[0]}"] if compared else [])]]
    for figure, values in rows:
        cells = [number(values.get(column)) for column in columns]
        if compared:
            first, second = (values.get(column) for column in compared)
            cells.append(f"{second / first:.2f}" if first and second is not None else "-")
        lines.append([figure, *cells])
    widths = [max(len(line[place]) for line in lines) for place in range(len(lines[0]))]
    lines.insert(1, ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])])
    text = ""
    for line in lines:
        cells = [
            line[0].ljust(widths[0]),
            *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)),
        ]
        text += f"| {' | '.join(cells)} |\n"
    return text


def chart(rows: list[Row], columns: list[str], width: int = 50) -> str:
    """A bar for each relay under each figure, as long as the value is of the figure's largest."""
    text = ""
    margin = max(map(len, columns))
    for figure, values in _charted(rows, columns):
        text += f"{figure}\n"
        most = max(value for value in values.values() if value is not None)
        for column in columns:
            if column in values:
                value = values[column]
                bar = "█" * (round(width * value / most) if value and most else 0)
                text += f"  {column:{margin}} {bar or '▏'} {number(value)}\n"
    return text


def picture(rows: list[Row], columns: list[str], path: Path, title: str) -> None:
    """The same as a PNG. Raises ImportError without matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    charted = list(_charted(rows, columns))
    across = min(4, len(charted))
    down = math.ceil(len(charted) / across)
    figure, axes = pyplot.subplots(down, across, figsize=(3.6 * across, 0.6 + 1.7 * down), squeeze=False)
    for place in axes.flat[len(charted) :]:
        place.axis("off")
    for place, (name, values) in zip(axes.flat, charted, strict=False):
        shown = [column for column in columns if column in values]
        colours = [_COLOURS[columns.index(column) % len(_COLOURS)] for column in shown]
        bars = place.barh(shown, [values[column] or 0 for column in shown], color=colours)
        place.bar_label(bars, [number(values[column]) for column in shown], padding=3, fontsize=8)
        place.set_title(name, fontsize=9, loc="left")
        place.invert_yaxis()
        place.set_xlim(0, 1.25 * max(bar.get_width() for bar in bars) or 1)
        place.tick_params(labelsize=8, labelbottom=False, bottom=False)
        place.spines[["top", "right", "bottom"]].set_visible(False)
    figure.suptitle(title, fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _charted(rows: list[Row], columns: list[str]) -> Iterator[Row]:
    for figure, values in rows:
        shown = {column: values[column] for column in columns if column in values}
        if figure.endswith(CHARTED) and any(value is not None for value in shown.values()):
            yield figure, shown
