"""`python -m onebasin` is the `onebasin` command."""

from onebasin.cli import main

main()
