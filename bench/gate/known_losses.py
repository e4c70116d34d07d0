"""Rows that are known to miss their floors on one kind of CPU, and how far: `--known-losses` holds them to that.

CI asks so, for a change must not wait for what another one mends. `make bench-check` fails there all the same.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.gate.verdict import Verdict


@dataclass(frozen=True)
class Loss:
    """Rows that lose on a CPU, and why."""

    rows: str
    """An expression that the names of the rows match."""
    floor: float
    """Below this they fail all the same."""
    reason: str

    def covers(self, verdict: Verdict) -> bool:
        return bool(re.search(self.rows, verdict.name)) and verdict.ratio >= self.floor


KNOWN: Mapping[str, Loss] = {
    "AuthenticAMD 25 avx512_vnni": Loss(
        r"^f16 product from memory, 1 row$",
        0.7,
        "Zen 4: one row of F16 takes as long as ggml's, or a seventh longer (0.85 and 0.93 in two runs)",
    ),
    "AuthenticAMD 26 avx512_vnni": Loss(
        r"^f16 product from (cache, 8 rows|memory, 1 row)$",
        0.7,
        "Zen 5: activations of 8 rows take more than the L1 cache, 80 us in one process and 98 in the next; one row "
        "takes 36 us of computing where ggml's takes 26, and loses while memory is slow (0.76 to 0.86 at 33 GB/s)",
    ),
}
"""By vendor, family and a flag, in Linux's words. An entry goes when `make bench-check` passes on its CPU."""


def known_loss(cpuinfo: Path = Path("/proc/cpuinfo")) -> Loss | None:
    """The known loss of this CPU; None where none is known."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8").partition("\n\n")[0].splitlines()
    except OSError:
        return None
    says = {key.strip(): value.split() for key, _, value in (line.partition(":") for line in lines)}
    for cpu, loss in KNOWN.items():
        vendor, family, flag = cpu.split()
        if says.get("vendor_id") == [vendor] and says.get("cpu family") == [family] and flag in says.get("flags", []):
            return loss
    return None


def unknown(missed: Sequence[Verdict], loss: Loss | None) -> list[Verdict]:
    """Rows that miss their floor for no known reason, or by more than is known."""
    return [verdict for verdict in missed if loss is None or not loss.covers(verdict)]
