"""Draws the lag of a group over time, as SVG. Pure.

The file of a group has a sample for each of its last ten commits: the sum of the positions, and the sum of the log ends of
all partitions. The difference is the lag at that moment.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from lakelog.report.markup import Child, Markup, element
from lakelog.report.scales import Scale, number_ticks, time_ticks
from storage_engine.quantities import shown_moment, shown_number
from storage_engine.topic.readers.consumer_files import PositionSample

_WIDTH, _HEIGHT = 880, 150
_LEFT, _RIGHT, _TOP, _BOTTOM = 90, 868, 22, 116
_SMALL_WIDTH, _SMALL_HEIGHT = 80, 18


def draw_lag(group: str, samples: Sequence[PositionSample]) -> Markup:
    """The lag at each sample, with axes.

    Args:
        samples: at least one, the oldest first.
    """
    lags = _lags(samples)
    times = Scale(samples[0].ms, samples[-1].ms, _LEFT, _RIGHT)
    heights = Scale(0, max(*lags, 1), _BOTTOM, _TOP)
    shapes: list[Child] = [element("text", "lag", x=_LEFT - 8, y=12, class_="end axis")]
    for tick in number_ticks(0, max(*lags, 1), 4):
        y = heights(tick)
        shapes.append(element("path", d=f"M{_LEFT} {y:.1f}H{_RIGHT}", class_="grid"))
        shapes.append(element("text", shown_number(tick), x=_LEFT - 8, y=y + 4, class_="end"))
    for at, written in time_ticks(samples[0].ms, samples[-1].ms, 5):
        x = times(at)
        shapes.append(element("path", d=f"M{x:.1f} {_BOTTOM}v4", class_="tick"))
        shapes.append(element("text", written, x=x, y=_BOTTOM + 18, class_="end" if x > _RIGHT - 60 else "middle"))
    points = [(times(each.ms), heights(lag)) for each, lag in zip(samples, lags, strict=True)]
    shapes += [element("path", d=f"M{x:.1f} {y:.1f}L{to_x:.1f} {to_y:.1f}", class_="lag-line")
               for (x, y), (to_x, to_y) in pairwise(points)]  # fmt: skip
    for (x, y), each, lag in zip(points, samples, lags, strict=True):
        title = element("title", f"{shown_moment(each.ms)}: lag {shown_number(lag)}")
        shapes.append(element("circle", title, cx=x, cy=y, r=4, class_="mark"))
    return element(
        "svg",
        *shapes,
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        role="img",
        class_="picture",
        aria_label=_text(group, samples),
    )


def draw_trend(group: str, samples: Sequence[PositionSample]) -> Markup | None:
    """The lag as a small line without axes, for a table; None with fewer than two samples."""
    if len(samples) < 2:
        return None
    lags = _lags(samples)
    times = Scale(samples[0].ms, samples[-1].ms, 2, _SMALL_WIDTH - 2)
    heights = Scale(0, max(*lags, 1), _SMALL_HEIGHT - 2, 2)
    corners = "L".join(f"{times(each.ms):.1f} {heights(lag):.1f}" for each, lag in zip(samples, lags, strict=True))
    return element(
        "svg", element("path", d=f"M{corners}", class_="lag-line"), viewBox=f"0 0 {_SMALL_WIDTH} {_SMALL_HEIGHT}",
        width=_SMALL_WIDTH, height=_SMALL_HEIGHT, role="img", class_="trend", aria_label=_text(group, samples),
    )  # fmt: skip


def _lags(samples: Sequence[PositionSample]) -> list[int]:
    return [max(0, each.end - each.position) for each in samples]


def _text(group: str, samples: Sequence[PositionSample]) -> str:
    lags = _lags(samples)
    return (
        f"Lag of {group}: {shown_number(lags[0])} at first, {shown_number(lags[-1])} at the last of {len(lags)} commits"
    )
