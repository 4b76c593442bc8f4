"""`python -m onebasin` is the `onebasin` command."""

from onebasin.cli.main import main

main()
