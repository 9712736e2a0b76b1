"""The tables of docs/benchmarks.md, rendered from benchmarks/results/*.json between `<!-- NAME -->` and `<!-- end -->`.

`python -m tests.docs.benchmarks` writes them; a test holds them equal. Figures are rounded, never edited.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.docs import swarm_tables
from tests.docs.tables import run_of, table

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "benchmarks.md"
RESULTS = ROOT / "benchmarks" / "results"
PART = re.compile(r"^<!-- ([a-z-]+) -->\n.*?^<!-- end -->$", re.MULTILINE | re.DOTALL)
CODES = ("ours", "one_class", "pcodec", "xor_zstd", "leb128_zstd", "u16_zstd", "leb128")


def size_table(report: dict[str, Any], key: str, digits: int) -> str:
    rows = [
        [name, f"{one['changed_ratio']:.2%}", *(f"{one[key][code]:.{digits}f}" for code in CODES)]
        for name, one in report["datasets"].items()
    ]
    return table(["data", "changed", *(f"`{code}`" for code in CODES)], rows)


def bits(kept: dict[str, Any]) -> str:
    rows = [
        [
            name,
            f"{one['changed_ratio']:.2%}",
            f"{one['bound']:.3f}",
            f"**{one['bits_per_change']['ours']:.3f}**",
            f"{one['bits_per_change']['ours'] / one['bound']:.3f}",
            f"{one['share_of_raw']:.2%}",
        ]
        for name, one in kept["report"]["datasets"].items()
    ]
    return table(["data", "changed", "bound", "bits per change", "over the bound", "of raw"], rows)


def speeds(kept: dict[str, Any]) -> str:
    keys = ("encode", "encode_with_digest", "apply", "digest")
    rows = [
        [name, *(f"{one[f'{key}_over_memcpy']:.2f}" for key in keys), f"{one['memcpy_gb_per_s']:.1f}"]
        for name, one in kept["report"]["datasets"].items()
    ]
    return table(["data", "encode", "encode and digest", "decode and apply", "full digest", "memcpy, GB/s"], rows)


def others(kept: dict[str, Any]) -> str:
    report = kept["report"]
    threads, wrong, peak = report["thread_scaling"], report["mismatches_after_100"], report["peak_extra_mb"]
    rows = [
        ["encode with two threads, over what memcpy gains", f"{threads['encode']:.2f}"],
        ["decode and apply with two threads, likewise", f"{threads['apply']:.2f}"],
        ["memcpy with two threads, over one", f"{threads['memcpy_gain']:.2f}"],
        ["encode over a loop in Python that writes varints", f"{report['encode_over_python_varint']:.1f}"],
        [f"wrong elements of {wrong['elements']:,} after {wrong['steps']} chained steps", str(wrong["ours"])],
        ["of those steps, wrong digests", str(wrong["ours_wrong_digests"])],
        ["the same for the additive scheme, wrong elements", str(wrong["additive"])],
        *([f"peak extra memory, MB: {name}", f"{value:.1f}"] for name, value in peak.items()),
        ["damaged payloads decoded", f"{report['fuzz']['inputs']:,}"],
        ["of those, neither refused nor inside their block", str(report["fuzz"]["failures"])],
    ]
    return table(["figure", "value"], rows)


PARTS: dict[str, tuple[str, Callable[[dict[str, Any]], str]]] = {
    "codec-run": ("codec", run_of),
    "codec-bits": ("codec", bits),
    "codec-rivals": ("codec", lambda kept: size_table(kept["report"], "bits_per_change", 2)),
    "codec-megabytes": ("codec", lambda kept: size_table(kept["report"], "mb_per_8b", 0)),
    "codec-speeds": ("codec", speeds),
    "codec-others": ("codec", others),
    **swarm_tables.PARTS,
}


def render(page: str) -> str:
    """The page with every part as the results have it. Raises KeyError for a part of another name."""

    def renew(match: re.Match[str]) -> str:
        of, make = PARTS[match[1]]
        return f"<!-- {match[1]} -->\n{make(json.loads((RESULTS / f'{of}.json').read_text()))}\n<!-- end -->"

    return PART.sub(renew, page)


def main() -> None:
    PAGE.write_text(render(PAGE.read_text()))


if __name__ == "__main__":
    main()
