"""How many weights are pruned after how many global steps: a pure function, in integers.

Sparsity rises in stages, as s(i) = target * (1 - (1 - i/n)^3) (Zhu and Gupta, 2017: fast while there is much to spare,
slow towards the end) or linearly. Fractions are exact: with floats int(0.29 * 100) is 28, and two machines could
disagree about one weight. Does not look at weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import isoscale

__all__ = ["Schedule"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    #: the share of weights that is pruned in the end
    target: Fraction
    #: the first pruning comes after so many steps, and each further one `every` steps later
    begin: int
    every: int
    stages: int
    shape: Literal["cubic", "linear"] = "cubic"

    def __post_init__(self) -> None:
        # A float would give other counts than the fraction that it was meant to be.
        if not isinstance(self.target, Fraction | int):
            raise isoscale.UserError(
                field="sparsity",
                value=repr(self.target),
                problem="not exact",
                remedy='give a fraction: Fraction("0.8"), Fraction(4, 5)',
            )
        if not 0 <= self.target <= 1:
            raise isoscale.UserError(
                field="sparsity", value=str(self.target), problem="not a share", remedy="give a number from 0 to 1"
            )
        for name, value in (("begin", self.begin), ("every", self.every), ("stages", self.stages)):
            if value < 1:
                raise isoscale.UserError(
                    field=name, value=value, problem="pruning follows a step", remedy="give an integer of at least 1"
                )

    @property
    def end(self) -> int:
        """The step after which the last pruning comes."""
        return self.begin + (self.stages - 1) * self.every

    def stage(self, step: int) -> int:
        """How many prunings are due once `step` steps are committed."""
        return max(0, min(self.stages, (step - self.begin) // self.every + 1))

    def sparsity(self, stage: int) -> Fraction:
        done = Fraction(stage, self.stages)
        return self.target * (done if self.shape == "linear" else 1 - (1 - done) ** 3)

    def kept(self, count: int, stage: int) -> int:
        """Of `count` weights, how many a stage leaves; half weights stay.

        >>> Schedule(target=Fraction("0.29"), begin=1, every=1, stages=1).kept(100, 1)
        71
        """
        return count - int(count * self.sparsity(stage))
