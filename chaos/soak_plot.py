"""A picture of a run: settled tasks a second, what waits, and how late the latest is, over time. Plain SVG."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from domain.messages import Json

_WIDTH, _HEIGHT, _GAP, _LEFT, _TOP = 720, 90, 34, 56, 30
_STYLE = (
    "text{font:11px sans-serif;fill:#808080}path{fill:none;stroke-width:1.5}"
    ".axis{stroke:#80808066;stroke-width:1}.a{stroke:#2f81c4}.b{stroke:#c47f2f}.c{stroke:#b5485d}"
)


def plot(series: Sequence[Json], title: str) -> str:
    """The picture. Its colours can be read on light and on dark."""
    pairs = list(pairwise(series))
    rate = [(b["at_s"], (b["settled"] - a["settled"]) / max(0.1, b["at_s"] - a["at_s"])) for a, b in pairs]
    waiting = [(s["at_s"], float(s["backlog"])) for s in series]
    overdue = [(s["at_s"], max(0.0, s["overdue_s"])) for s in series]
    last = max((s["at_s"] for s in series), default=1.0)
    panels = (("settled a second", "a", rate), ("waiting", "b", waiting), ("oldest overdue, s", "c", overdue))
    height = _TOP + len(panels) * (_HEIGHT + _GAP)
    parts = [_panel(n, name, kind, points, last) for n, (name, kind, points) in enumerate(panels)]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_LEFT + _WIDTH + 16} {height}" role="img">'
        f"<title>{title}</title><style>{_STYLE}</style>"
        f'<text x="{_LEFT}" y="16">{title}</text>{"".join(parts)}</svg>\n'
    )


def _panel(number: int, name: str, kind: str, points: Sequence[tuple[float, float]], last: float) -> str:
    top = _TOP + number * (_HEIGHT + _GAP)
    most = max((y for _, y in points), default=0.0) or 1.0
    bottom = top + _HEIGHT
    line = " ".join(f"{_LEFT + x / last * _WIDTH:.1f},{bottom - y / most * _HEIGHT:.1f}" for x, y in points)
    return (
        f'<path class="axis" d="M{_LEFT},{top}V{bottom}H{_LEFT + _WIDTH}"/>'
        f'<text x="{_LEFT + 6}" y="{top + 4}">{name}</text>'
        f'<text x="{_LEFT - 6}" y="{top + 8}" text-anchor="end">{most:.3g}</text>'
        f'<text x="{_LEFT - 6}" y="{bottom}" text-anchor="end">0</text>'
        f'<text x="{_LEFT + _WIDTH}" y="{bottom + 14}" text-anchor="end">{last:.0f} s</text>'
        f'<path class="{kind}" d="M{line}"/>'
    )
