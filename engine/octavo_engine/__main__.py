"""`python -m octavo_engine`: the same as the `octavo` command."""

from octavo_engine.cli.main import main

main()
