"""The command line: all commands."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

import knuckle as kn
from knuckle import cli_control, cli_discover, cli_fit, cli_info, cli_simulate
from knuckle.cli_common import process_begins
from knuckle.deadline import still_running

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
COMMANDS = (
    cli_simulate.simulate, cli_control.control, cli_fit.fit, cli_discover.discover, cli_fit.demo, cli_info.info,
    cli_info.export,
)  # fmt: skip
for command in COMMANDS:
    app.command()(command)


def main() -> None:
    """Entry point of the command."""
    process_begins()
    try:
        app()
    finally:
        if still_running():  # a phase that was given up: nobody waits for it
            _leave_at_once()


def _leave_at_once() -> None:
    error = sys.exc_info()[1]
    sys.stdout.flush()
    sys.stderr.flush()
    code = error.code if isinstance(error, SystemExit) else error
    os._exit(code if isinstance(code, int) else int(code is not None))


@app.callback(invoke_without_command=True)
def _top(version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False) -> None:
    """Knuckle: a differentiable rigid-body simulator."""
    if version:
        typer.echo(f"knuckle {kn.__version__}")
        raise typer.Exit()
