"""Which requests are sent and when: drawn from a seed, or read from a trace. Sends nothing."""

import csv
import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import msgspec

_WORDS = (
    *("time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world"),
    *("school", "state", "family", "student", "group", "country", "problem", "hand", "part"),
    *("place", "case", "week", "company", "system", "program", "question", "work", "number"),
)
"""Words of about one token each with any tokenizer; the answer's usage tells the true number."""


@dataclass(frozen=True, slots=True)
class Planned:
    at_s: float
    """Seconds after the start; 0 in a closed loop, where a free client sends the next."""
    num_input_words: int
    num_output_tokens: int


class TraceError(Exception):
    """A trace that cannot be read; names the file and the line."""


def synthetic(
    num_requests: int, num_input: int, num_output: int, rate: float | None, seed: int
) -> list[Planned]:
    """All of one size; with a rate, in requests a second, they arrive as a Poisson process does."""
    rng = random.Random(seed)
    at_s = 0.0
    planned = []
    for _ in range(num_requests):
        planned.append(Planned(at_s, num_input, num_output))
        at_s += rng.expovariate(rate) if rate else 0.0
    return planned


def read_trace(path: Path, num_requests: int | None, speed: float) -> list[Planned]:
    """`speed` times as fast as recorded. Either CSV with the columns TIMESTAMP, ContextTokens and
    GeneratedTokens, as Azure published, or lines of JSON with timestamp_s, input_tokens and
    output_tokens."""
    rows = _json_rows(path) if path.suffix in (".json", ".jsonl") else _csv_rows(path)
    taken = [row for row, _ in zip(rows, range(num_requests or 10**9), strict=False)]
    if not taken:
        raise TraceError(f"{path}: no request in it")
    begin_s = taken[0].at_s
    if any(later.at_s < earlier.at_s for earlier, later in pairwise(taken)):
        raise TraceError(f"{path}: the times go backwards")
    return [
        Planned((row.at_s - begin_s) / speed, row.num_input_words, row.num_output_tokens)
        for row in taken
    ]


def prompt(num_words: int, rng: random.Random) -> str:
    """No two alike, so that nothing but their first words is found in a prefix cache."""
    return " ".join(rng.choices(_WORDS, k=num_words))


class _TraceRow(msgspec.Struct):
    timestamp_s: float
    input_tokens: int
    output_tokens: int


def _json_rows(path: Path) -> Iterator[Planned]:
    for number, line in enumerate(_lines(path), 1):
        try:
            row = msgspec.json.decode(line, type=_TraceRow)
        except msgspec.DecodeError as error:
            raise TraceError(f"{path}, line {number}: {error}") from error
        yield Planned(row.timestamp_s, row.input_tokens, row.output_tokens)


def _csv_rows(path: Path) -> Iterator[Planned]:
    for number, row in enumerate(csv.DictReader(_lines(path)), 2):
        try:
            # Seven digits of a second in Azure's files; Python knows six.
            stamp = datetime.fromisoformat(row["TIMESTAMP"].strip()[:26])
            lens = int(row["ContextTokens"]), int(row["GeneratedTokens"])
        except (KeyError, ValueError, AttributeError) as error:
            raise TraceError(f"{path}, line {number}: {error!r}") from error
        yield Planned(stamp.timestamp(), *lens)


def _lines(path: Path) -> list[str]:
    try:
        return [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"{path} cannot be read: {error}") from error
