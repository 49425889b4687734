"""docs/images/wheel.svg: the levels of the wheel, and a message on each, drawn from the wheel's own geometry."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from sidecar.wheel.geometry import RADIX, WIDTHS_MS, level_of

_CENTRE: Final = 210
_RINGS: Final = ((64, 104, "1 s"), (108, 148, "64 s"), (152, 192, "68 min"))
_SHOWN: Final = 16
"""Slots drawn on a ring, for the 64 that it has."""
_MESSAGES: Final = (("due in 20 s", 20), ("due in 30 min", 1_800), ("due in 2 days", 172_800))

_DESCRIPTION: Final = """\
Three of six levels as rings of 64 slots. A message due in 20 s is in a slot of 1 s, one due in 30 minutes in a slot of
64 s, one due in 2 days in a slot of 68 minutes. Below, the same messages as rows in the order of their due times: every
slot is a range of neighbouring rows."""
_STYLE: Final = """
  .ring { fill: none; stroke: #00897b; stroke-width: 1 }
  .slot { fill: #00897b; fill-opacity: .10; stroke: #00897b; stroke-opacity: .55; stroke-width: 1 }
  .held { fill: #f57c00; fill-opacity: .85 }
  text { font: 14px system-ui, sans-serif; fill: #1f2933 }
  .small { font-size: 12px; fill: #52606d }
  .label { font-weight: 600; fill: #00695c }
  .wire { stroke: #f57c00; stroke-width: 1.5; fill: none }
  .row { fill: #f57c00; fill-opacity: .25; stroke: #f57c00 }
  .rest { fill: #00897b; fill-opacity: .10; stroke: #00897b; stroke-opacity: .55 }
  .paper { fill: #ffffff }
  @media (prefers-color-scheme: dark) {
    .paper { fill: #1e2129 }
    text { fill: #e4e7eb }
    .small { fill: #b8c2cc }
    .label { fill: #4db6ac }
  }
"""


def picture() -> str:
    """Return the SVG. It has a ground of its own, so that it can be read on any page, light or dark."""
    return "\n".join(
        [
            '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 470" role="img" aria-labelledby="t d">',
            '<title id="t">The timer wheel</title>',
            f'<desc id="d">{_DESCRIPTION}</desc>',
            f"<style>{_STYLE}</style>",
            '<rect class="paper" width="760" height="470" rx="8"/>',
            *_rings(),
            *_messages(),
            *_rows(),
            "</svg>",
            "",
        ]
    )


def _rings() -> Iterator[str]:
    for inner, outer, _ in _RINGS:
        for slot in range(_SHOWN):
            yield _sector("slot", inner, outer, slot)
    yield f'<text x="{_CENTRE}" y="{_CENTRE + 5}" text-anchor="middle" class="label">now</text>'


def _messages() -> Iterator[str]:
    for (inner, outer, width), (text, delay_s) in zip(_RINGS, _MESSAGES, strict=True):
        level = level_of(delay_s * 1000, 0)
        share = delay_s * 1000 / (WIDTHS_MS[level] * RADIX)
        slot = int(share * _SHOWN)
        y = 60 + level * 88
        x0, y0 = _at((inner + outer) / 2, (slot + 0.5) / _SHOWN)
        yield _sector("held", inner + 3, outer - 3, slot)
        yield f'<path class="wire" d="M{x0:.0f} {y0:.0f} C {x0 + 90:.0f} {y0:.0f}, 400 {y:.0f}, 452 {y:.0f}"/>'
        yield f'<text x="460" y="{y}" class="label">{text}</text>'
        yield f'<text x="460" y="{y + 19}" class="small">level {level}: 64 slots of {width}</text>'
        yield f'<text x="460" y="{y + 36}" class="small">one changelog record for all that</text>'
        yield f'<text x="460" y="{y + 52}" class="small">a transaction stores in this slot</text>'
    yield '<text x="460" y="325" class="small">levels 3 to 5: slots of 3 d, 194 d, 34 y</text>'


def _rows() -> Iterator[str]:
    """Draw the rows of the store, in which the slots of all levels are ranges."""
    yield '<text x="24" y="432" class="small">rows in the order of the due time: what is due is at the front</text>'
    for n in range(28):
        kind = "row" if n in {1, 8, 20} else "rest"
        yield f'<rect class="{kind}" x="{24 + n * 25}" y="441" width="22" height="14" rx="2"/>'


def _sector(kind: str, inner: float, outer: float, slot: int) -> str:
    a, b = slot / _SHOWN + 0.004, (slot + 1) / _SHOWN - 0.004
    (x1, y1), (x2, y2), (x3, y3), (x4, y4) = _at(inner, a), _at(outer, a), _at(outer, b), _at(inner, b)
    return (
        f'<path class="{kind}" d="M{x1:.1f} {y1:.1f} L{x2:.1f} {y2:.1f} A{outer} {outer} 0 0 1 {x3:.1f} {y3:.1f} '
        f'L{x4:.1f} {y4:.1f} A{inner} {inner} 0 0 0 {x1:.1f} {y1:.1f} Z"/>'
    )


def _at(radius: float, turn: float) -> tuple[float, float]:
    """Return the point of a ring, clockwise from the top."""
    angle = 2 * math.pi * turn - math.pi / 2
    return _CENTRE + radius * math.cos(angle), _CENTRE + radius * math.sin(angle)
