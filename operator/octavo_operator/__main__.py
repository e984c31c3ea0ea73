"""Entry point: `octavo-operator --config FILE`, `python -m octavo_operator --config FILE`."""

import argparse
import asyncio
import sys
from pathlib import Path

import structlog

from octavo_operator import config, logs
from octavo_operator.errors import ConfigurationError, OperatorError
from octavo_operator.run import run


def main() -> None:
    """Exit codes: 0 after a signal, 2 for settings that cannot work, 1 for all else."""
    parser = argparse.ArgumentParser(prog="octavo-operator", description=config.__doc__)
    parser.add_argument("--config", type=Path, required=True, help="YAML file with the settings")
    arguments = parser.parse_args()
    try:
        settings = config.load(arguments.config)
    except ConfigurationError as error:
        sys.exit(_usage(error))
    logs.configure(settings.log_level)
    try:
        asyncio.run(run(settings))
    except ConfigurationError as error:
        sys.exit(_usage(error))
    except OperatorError as error:
        structlog.get_logger().error("ended", error=str(error), error_type=type(error).__name__)
        sys.exit(1)


def _usage(error: ConfigurationError) -> int:
    sys.stderr.write(f"octavo-operator: {error}\n")
    return 2


if __name__ == "__main__":
    main()
