"""What can go wrong around a test cluster, as one small tree.

ClusterError
├── Missing          something has to be installed first; the text says what
└── CommandFailed    a program that we ran returned an error; the text holds its last lines
"""

from __future__ import annotations


class ClusterError(Exception):
    """Anything that keeps a test cluster from doing what was asked."""


class Missing(ClusterError):
    """A program, package or right that has to be there is not."""


class CommandFailed(ClusterError):
    """A program returned an error."""
