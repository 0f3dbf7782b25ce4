"""`python -m knuckle`: the same as the command `knuckle`."""

from knuckle.cli import main

main()
