"""The command line: all commands."""

from __future__ import annotations

from typing import Annotated

import typer

import knuckle as kn
from knuckle import cli_fit, cli_info, cli_simulate

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
for command in (cli_simulate.simulate, cli_fit.fit, cli_fit.demo, cli_info.info, cli_info.export):
    app.command()(command)


def main() -> None:
    """Entry point of the command."""
    app()


@app.callback(invoke_without_command=True)
def _top(version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False) -> None:
    """Knuckle: a differentiable rigid-body simulator."""
    if version:
        typer.echo(f"knuckle {kn.__version__}")
        raise typer.Exit()
