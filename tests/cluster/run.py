"""Running a program to its end, with its last words in the error. Knows nothing of clusters."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.cluster.errors import CommandFailed

_TAIL_LINES = 30


def run(
    argv: Sequence[str | Path],
    *,
    stdin: str | bytes | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout_s: float = 600,
) -> str:
    """Runs `argv`, returns its standard output as text.

    `env` is added to this process's environment. Raises `CommandFailed` with the command, its exit
    status and the last lines of its output when it fails, is missing or takes longer than
    `timeout_s`.
    """
    words = [str(word) for word in argv]
    data = stdin.encode() if isinstance(stdin, str) else stdin
    try:
        done = subprocess.run(
            words,
            input=data,
            capture_output=True,
            env=None if env is None else {**os.environ, **env},
            cwd=cwd,
            timeout=timeout_s,
            check=False,
        )
    except FileNotFoundError as error:
        raise CommandFailed(f"{words[0]}: not found ({' '.join(words)})") from error
    except subprocess.TimeoutExpired as error:
        raise CommandFailed(f"{' '.join(words)}: not done after {timeout_s:.0f} s") from error
    if done.returncode != 0:
        said = (done.stderr + done.stdout).decode(errors="replace").strip().splitlines()
        tail = "\n".join(said[-_TAIL_LINES:])
        raise CommandFailed(f"{' '.join(words)}: exit status {done.returncode}\n{tail}")
    return done.stdout.decode(errors="replace")
