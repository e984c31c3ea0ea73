"""What the checks of one client found, and all of it as a matrix."""

import json
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

Check = Callable[[], None]


@dataclass(frozen=True)
class Finding:
    check: str
    is_good: bool
    detail: str = ""


def run_checks(checks: Mapping[str, Check]) -> list[Finding]:
    findings = []
    for name, check in checks.items():
        try:
            check()
            findings.append(Finding(name, True))
        except Exception as error:  # whatever a client raises is a finding
            where = traceback.extract_tb(error.__traceback__)[-1]
            detail = f"{type(error).__name__}: {error} ({where.name}:{where.lineno})"
            findings.append(Finding(name, False, detail[:500]))
    return findings


def findings_of(output: str) -> list[Finding]:
    """Of a client's own process, which prints one JSON object a line."""
    lines = [line for line in output.splitlines() if line.startswith("{")]
    return [Finding(**json.loads(line)) for line in lines]


def print_matrix(by_client: Mapping[str, list[Finding]]) -> bool:
    """Whether all is good. A dot stands where a client does not know of it."""
    checks = list(dict.fromkeys(f.check for findings in by_client.values() for f in findings))
    table = Table("check", *by_client)
    for check in checks:
        cells = []
        for findings in by_client.values():
            found = [f.is_good for f in findings if f.check == check]
            cells.append(("ok" if found[0] else "[red]FAIL[/red]") if found else "·")
        table.add_row(check, *cells)
    console = Console(file=sys.stdout, width=120)
    console.print(table)
    bad = [(name, f) for name, findings in by_client.items() for f in findings if not f.is_good]
    for name, finding in bad:
        console.print(f"{name}, {finding.check}: {finding.detail}", markup=False)
    return not bad
