"""The figures of a run: medians over its rounds, and ratios between servers that were measured in the same round.

A ratio is taken within each round first, because the machine may be twice as slow in the next one; then the median of
those ratios. Rows with an error (wrong answers, a server that did not start) never count.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

Row = dict[str, Any]


@dataclass(frozen=True)
class Ratio:
    """How often one fits into the other: the median of all rounds, and the least and most of any."""

    middle: float
    least: float
    most: float


class Results:
    """All rows of one run."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self.about: dict[str, Any] = {}
        self.good: list[Row] = []
        self.failed: list[Row] = []
        for row in rows:
            if "about" in row:
                self.about = row["about"]
            else:
                (self.failed if "error" in row else self.good).append(row)

    @classmethod
    def read(cls, path: Path) -> Results:
        """From the JSON lines of a run."""
        return cls(json.loads(line) for line in path.read_text().splitlines())

    def rows(self, work: str, candidate: str, **also: object) -> list[Row]:
        """The good rows of a work; `also` narrows them: what="post", size=100."""
        wanted = {"work": work, "candidate": candidate, **also}
        return [row for row in self.good if all(row.get(key) == value for key, value in wanted.items())]

    def figure(self, work: str, candidate: str, key: str = "cpu_us", **also: object) -> float | None:
        """The median of one figure; None if there is none."""
        values = [row[key] for row in self.rows(work, candidate, **also) if key in row]
        return median(values) if values else None

    def rounds(self, work: str, candidate: str) -> int:
        """How many rounds the figures come from."""
        return len(self.rows(work, candidate))

    def ratio(self, work: str, candidate: str, against: str, key: str = "cpu_us") -> Ratio | None:
        """How many times `against` needs what the candidate needs: above 1 the candidate is ahead."""
        others = {row["round"]: row[key] for row in self.rows(work, against)}
        pairs = [(row[key], others[row["round"]]) for row in self.rows(work, candidate) if row["round"] in others]
        each = [other / own for own, other in pairs if own > 0]
        return Ratio(median(each), min(each), max(each)) if each else None

    def growth(self, work: str, candidate: str, what: str, least: int = 0) -> Ratio | None:
        """What an operation costs at the largest size, as a multiple of the smallest.

        Where a small server was measured beside the large one the ratio is taken within each turn. Otherwise it is that
        of the largest size to the smallest that is at least `least`.
        """
        by_size = {size: cost for size, cost in self.by_size(work, candidate, what) if size >= least}
        if len(by_size) < 2:
            return None
        rows = self.rows(work, candidate, what=what, size=max(by_size))
        each = [row["cpu_us"] / row.get("small_us", by_size[min(by_size)]) for row in rows]
        return Ratio(median(each), min(each), max(each))

    def by_size(self, work: str, candidate: str, what: str) -> Iterator[tuple[int, float]]:
        """The cost at each size, from the smallest up."""
        sizes = sorted({row["size"] for row in self.rows(work, candidate, what=what)})
        for size in sizes:
            cost = self.figure(work, candidate, what=what, size=size)
            if cost is not None:
                yield size, cost
