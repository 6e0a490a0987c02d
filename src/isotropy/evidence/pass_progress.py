"""Lines about a pass over the data that takes long: how far it is, now and then.

Short passes say nothing. Library code prints nothing either: sentences go to a callback.
"""

from __future__ import annotations

import time
from collections.abc import Callable

FIRST_SECONDS = 5.0
"""A pass says nothing before this."""
EVERY_SECONDS = 15.0
"""Between two lines of one pass."""


class PassProgress:
    """Counts the examples of one pass and tells `remark` about them; None tells nobody."""

    def __init__(
        self,
        remark: Callable[[str], None] | None,
        what: str,
        examples: int,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.remark = remark
        self.what = what
        self.examples = examples
        self.done = 0
        self.clock = clock
        self.started = clock()
        self.due = self.started + FIRST_SECONDS

    def add(self, examples: int) -> None:
        """So many more examples are about to be worked on; those before them are done."""
        if self.remark is not None and self.done and self.clock() >= self.due:
            seconds = self.clock() - self.started
            left = seconds / self.done * (self.examples - self.done)
            self.remark(
                f"{self.what}: {self.done} of {self.examples} examples, {seconds:.0f} s, about "
                f"{left:.0f} s left"
            )
            self.due = self.clock() + EVERY_SECONDS
        self.done += examples
