# SPDX-License-Identifier: Apache-2.0
"""Draws SVG charts that are readable on a light and on a dark page. No state, no dependencies.

lines():  one line for each series over logarithmic axes
panels(): bars from zero, or points on a logarithmic axis, with a whisker from the smallest to the largest value
"""
import math
from xml.sax.saxutils import escape

WIDTH = 760
# Pairs for a light and a dark page; the first is Tandem's, or the first series'.
COLOURS = (("#1d5fd1", "#6ea8ff"), ("#c2570c", "#f39a4e"), ("#2f8132", "#72c476"), ("#8a3ab9", "#c793ea"),
           ("#b3261e", "#f08a83"), ("#0f7c83", "#5cc4cb"), ("#6b6b00", "#c9c95a"), ("#5f6368", "#a8adb3"))
MARKERS = ("circle", "square", "triangle", "diamond")


def _style():
    light = "".join(f".c{i}{{stroke:{a};fill:{a}}}" for i, (a, _) in enumerate(COLOURS))
    dark = "".join(f".c{i}{{stroke:{b};fill:{b}}}" for i, (_, b) in enumerate(COLOURS))
    return ("<style>text{font:12px system-ui,sans-serif;fill:#1f2328}.title{font-size:14px;font-weight:600}"
            ".small{font-size:11px;fill:#59636e}.page{fill:#ffffff}.grid{stroke:#d1d9e0;stroke-width:1}"
            ".axis{stroke:#59636e;stroke-width:1}.line{fill:none;stroke-width:2}.whisker{stroke:#1f2328;stroke-width:1.2}"
            f"{light}@media (prefers-color-scheme:dark){{text{{fill:#e6edf3}}.small{{fill:#9198a1}}.page{{fill:#0d1117}}"
            f".grid{{stroke:#3d444d}}.axis{{stroke:#9198a1}}.whisker{{stroke:#e6edf3}}{dark}}}</style>")


def _document(height, title, body):
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
            f'role="img" aria-label="{escape(title, {chr(34): "&quot;"})}">{_style()}'
            f'<rect class="page" width="{WIDTH}" height="{height}"/>'
            f'<text class="title" x="16" y="24">{escape(title)}</text>\n' + "\n".join(body) + "\n</svg>\n")


def _text(x, y, text, anchor="start", kind=""):
    attribute = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{attribute}>{escape(str(text))}</text>'


def _segment(x1, y1, x2, y2, kind):
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _marker(x, y, index, r=3.5):
    kind, shape = f"c{index % len(COLOURS)}", MARKERS[index % len(MARKERS)]
    if shape == "circle":
        return f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="{r}"/>'
    corners = {"square": ((-1, -1), (1, -1), (1, 1), (-1, 1)), "triangle": ((0, -1.3), (1.2, 1), (-1.2, 1)),
               "diamond": ((0, -1.4), (1.4, 0), (0, 1.4), (-1.4, 0))}[shape]
    points = " ".join(f"{x + r * a:.1f},{y + r * b:.1f}" for a, b in corners)
    return f'<polygon class="{kind}" points="{points}"/>'


def number(value):
    """At most three significant digits, or all digits before the point."""
    if value is None:
        return "–"
    if 0 < value < 0.001:
        return "<0.001"
    if value == 0 or abs(value) >= 100:
        return f"{value:.0f}"
    text = f"{value:.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def size(count):
    """8, 16K, 64M: bytes as the flags of `tandem bench` spell them."""
    for unit, letter in ((1 << 20, "M"), (1 << 10, "K")):
        if count >= unit and count % unit == 0:
            return f"{count // unit}{letter}"
    return str(count)


def decades(low, high):
    """The powers of ten that enclose [low, high]."""
    return [10.0 ** e for e in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]


def nice_ticks(high):
    """0, step, 2 step, ...: four to eight round numbers that reach at least to `high`."""
    if high <= 0:
        return [0.0, 1.0]
    power = 10.0 ** math.floor(math.log10(high))
    step = next(s for s in (power / 5, power / 2, power, power * 2) if high / s <= 6)
    return [step * i for i in range(math.ceil(high / step - 1e-9) + 1)]


def lines(title, x_label, y_label, series, x_form=size):
    """An SVG with one line per (name, [(x, y), ...]) over logarithmic axes."""
    series = [(name, sorted(points)) for name, points in series if points]
    xs = sorted({x for _, points in series for x, _ in points})
    ticks = decades(min(y for _, p in series for _, y in p), max(y for _, p in series for _, y in p))
    left, right, top, bottom = 70, WIDTH - 24, 70, 360
    low_x, span_x = math.log(xs[0]), max(math.log(xs[-1]) - math.log(xs[0]), 1e-9)
    low_y, span_y = math.log(ticks[0]), max(math.log(ticks[-1]) - math.log(ticks[0]), 1e-9)
    at_x = lambda x: left + (math.log(x) - low_x) / span_x * (right - left)
    at_y = lambda y: bottom - (math.log(y) - low_y) / span_y * (bottom - top)
    body = []
    for tick in ticks:
        body += [_segment(left, at_y(tick), right, at_y(tick), "grid"), _text(left - 8, at_y(tick) + 4, f"{tick:g}", "end", "small")]
    for x in xs:
        body += [_segment(at_x(x), bottom, at_x(x), bottom + 4, "axis"), _text(at_x(x), bottom + 18, x_form(x), "middle", "small")]
    body += [_segment(left, bottom, right, bottom, "axis"), _text((left + right) / 2, bottom + 38, x_label, "middle"),
             _text(left - 54, top - 12, y_label)]
    legend = left
    for index, (name, points) in enumerate(series):
        path = " ".join(f"{at_x(x):.1f},{at_y(y):.1f}" for x, y in points)
        body.append(f'<polyline class="line c{index % len(COLOURS)}" style="fill:none" points="{path}"/>')
        body += [_marker(at_x(x), at_y(y), index) for x, y in points]
        body += [_marker(legend + 4, 40, index), _text(legend + 14, 44, name)]
        legend += 32 + 7 * len(name)
    return _document(bottom + 54, title, body)


def panels(title, charts, columns=2):
    """An SVG of small charts. A chart is {title, unit, rows: [(name, median, min, max, colour index)], log}."""
    charts = [chart for chart in charts if chart["rows"]]
    gap = 20
    label = 14 + 7 * max(len(row[0]) for chart in charts for row in chart["rows"])
    width = (WIDTH - 32 - gap * (columns - 1)) / columns
    body, y = [], 40
    for first in range(0, len(charts), columns):
        row_of_charts = charts[first:first + columns]
        height = max(len(chart["rows"]) for chart in row_of_charts) * 22
        for column, chart in enumerate(row_of_charts):
            body += _panel(chart, 16 + column * (width + gap), y, label, width)
        y += height + 66
    return _document(y, title, body)


def _panel(chart, x, y, label, width):
    rows, left, right = chart["rows"], x + label, x + width - 46
    top, bottom = y + 22, y + 22 + 22 * len(rows)
    largest = max(max(filter(None, row[1:4])) for row in rows)
    if chart.get("log"):
        ticks = decades(min(min(filter(None, row[1:4])) for row in rows), largest)
        low, span = math.log(ticks[0]), max(math.log(ticks[-1] / ticks[0]), 1e-9)
        at = lambda v: left + (math.log(v) - low) / span * (right - left)
    else:
        ticks = nice_ticks(largest)
        at = lambda v: left + v / ticks[-1] * (right - left)
    body = [_text(x, y + 8, chart["title"]), _text(right + 46, y + 8, chart["unit"], "end", "small")]
    for tick in ticks:
        body += [_segment(at(tick), top, at(tick), bottom, "grid"), _text(at(tick), bottom + 15, f"{tick:g}", "middle", "small")]
    for index, (name, median, least, most, colour) in enumerate(rows):
        middle = top + 22 * index + 11
        body.append(_text(left - 8, middle + 4, name, "end"))
        if median is not None:
            if chart.get("log"):
                body.append(_marker(at(median), middle, colour))
            else:
                body.append(f'<rect class="c{colour % len(COLOURS)}" style="stroke:none" x="{left:.1f}" y="{middle - 7:.1f}" '
                            f'width="{max(at(median) - left, 0.5):.1f}" height="14"/>')
        if least is not None and most is not None and most > least:
            body.append(_segment(at(least), middle, at(most), middle, "whisker"))
            body += [_segment(at(v), middle - 4, at(v), middle + 4, "whisker") for v in (least, most)]
        furthest = max(v for v in (median, most) if v is not None)
        body.append(_text(at(furthest) + 6, middle + 4, number(median), kind="small"))
    body.append(_segment(left, top, left, bottom, "axis"))
    return body


def curves(title, x_label, y_label, series, width=WIDTH, height=320):
    """Lines over linear axes. `series` is a list of (name, [(x, low, middle, high)]): the line goes through the middles, and
    a faint band from low to high is behind it."""
    left, right, top, bottom = 64, width - 16, 56, height - 44
    points = [point for _, row in series for point in row]
    x_high = max(point[0] for point in points)
    low, high = min(point[1] for point in points), max(point[3] for point in points)
    step = 10 ** math.floor(math.log10(max(high - low, 1e-9)))
    step *= next(factor for factor in (0.1, 0.2, 0.5, 1, 2, 5) if (high - low) / (step * factor) <= 8)
    y_low, y_high = math.floor(low / step) * step, math.ceil(high / step) * step

    def place(x, y):
        return left + (right - left) * x / x_high, bottom - (bottom - top) * (y - y_low) / (y_high - y_low)

    body = []
    for tick in range(round((y_high - y_low) / step) + 1):
        value = y_low + tick * step
        y = place(0, value)[1]
        body += [_segment(left, y, right, y, "grid"), _text(left - 6, y + 4, f"{value:g}", "end", "small")]
    for tick in nice_ticks(x_high):
        if tick <= x_high:
            body.append(_text(place(tick, y_low)[0], bottom + 16, f"{tick:,.0f}", "middle", "small"))
    body += [_segment(left, bottom, right, bottom, "axis"), _text(right, height - 8, x_label, "end", "small"),
             _text(16, 44, y_label, "start", "small")]
    for index, (name, row) in enumerate(series):
        kind = f"c{index % len(COLOURS)}"
        band = [place(x, top_y) for x, _, _, top_y in row] + [place(x, low_y) for x, low_y, _, _ in reversed(row)]
        body.append(f'<polygon class="{kind}" style="stroke:none;fill-opacity:.18" points="'
                    + " ".join(f"{x:.1f},{y:.1f}" for x, y in band) + '"/>')
        body.append(f'<polyline class="line {kind}" style="fill:none" points="'
                    + " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(x, y) for x, _, y, _ in row)) + '"/>')
        body += [_marker(right - 160 + 80 * index, 40, index), _text(right - 150 + 80 * index, 44, name, "start", "small")]
    return _document(height, title, body)
