"""Names of a chart's line and band. The names depend on how many ranks and steps a point stands for."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PointNames:
    """Names for the points of a fit's charts."""

    ranks: int
    width: int

    @property
    def single(self) -> bool:
        """A point is one step of one rank, and the chart has no band."""
        return self.ranks == 1 and self.width == 1

    @property
    def point(self) -> str:
        return "a single step" if self.single else "the mean of a point"

    @property
    def times(self) -> dict[str, str]:
        """Without a band, its names are empty."""
        if self.single:
            return {"line": "step time", "band": "", "least": "", "most": ""}
        if self.width == 1:
            return {
                "line": "mean of the ranks",
                "band": "fastest to slowest rank",
                "least": "fastest rank",
                "most": "slowest rank",
            }
        return {
            "line": "mean of the steps",
            "band": "shortest to longest step",
            "least": "shortest step",
            "most": "longest step",
        }

    @property
    def rates(self) -> dict[str, str]:
        if self.single:
            return {"band": "", "least": "", "most": ""}
        of = "rank" if self.width == 1 else "step"
        return {"band": f"lowest to highest {of}", "least": f"lowest {of}", "most": f"highest {of}"}

    @property
    def about(self) -> str:
        if self.single:
            return "Each point is one step."
        if self.width == 1:
            return "Each point is one step: the mean of its ranks, and a band from the fastest to the slowest rank."
        whose = "" if self.ranks == 1 else " of all ranks"
        return (
            f"Each point is {self.width:,} steps{whose}: their mean, and a band from the shortest to the longest step."
        )
