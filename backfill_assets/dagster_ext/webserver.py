"""Dagster's web server behind the door: no socket leads to it otherwise.

`python -m backfill_assets.webserver --workspace FILE` serves on a port of this machine; with
`--listening`, on sockets that whoever started it holds already.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path

import click
import uvicorn
from dagster import DagsterInstance
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import WorkspaceFileTarget
from dagster._utils.log import configure_loggers
from dagster_webserver.app import create_app_from_workspace_process_context
from dagster_webserver.version import __version__
from starlette.applications import Starlette

from backfill_assets.dagster_ext.door import RequestGuard
from backfill_assets.dagster_ext.passwords import PasswordFile
from backfill_assets.settings import Settings, load_settings

#: As Dagster's own command has them: milliseconds for a statement, seconds a connection is kept,
#: connections beyond the pool; milliseconds between two looks of an open page.
_DATABASE_OPTIONS = (15_000, 3600, 20)
_POLL_MILLISECONDS = 2000
#: Seconds for requests under way once it is told to end.
_SHUTDOWN_SECONDS = 5


@click.command()
@click.option("--workspace", required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--listening", multiple=True, type=int, help="A descriptor; may be given again.")
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", default=3000, show_default=True)
def serve(workspace: Path, listening: Sequence[int], host: str, port: int) -> None:
    """Serve the UI of a workspace, behind the door."""
    configure_loggers()
    settings = load_settings()
    with (
        DagsterInstance.get() as instance,
        WorkspaceProcessContext(
            instance,
            version=__version__,
            workspace_load_target=WorkspaceFileTarget([str(workspace)]),
        ) as context,
        contextlib.suppress(KeyboardInterrupt),  # the server has ended as it should by then
    ):
        instance.optimize_for_webserver(*_DATABASE_OPTIONS)
        sockets = [socket.socket(fileno=number) for number in listening]
        where = sockets[0].getsockname() if sockets else (host, port)
        text = f"Dagster's UI is at http://{where[0]}:{where[1]}"
        app = create_app_from_workspace_process_context(
            context, live_data_poll_rate=_POLL_MILLISECONDS, lifespan=partial(_announce_start, text)
        )
        config = uvicorn.Config(
            guard_app(app, settings),
            host=host,
            port=port,
            log_level="warning",
            timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
        )
        uvicorn.Server(config).run(sockets or None)


def guard_app(app: Starlette, settings: Settings) -> RequestGuard:
    """An application behind the door of a deployment.

    Raises:
        SettingsError: the file of passwords is not as it should be.
    """
    path = settings.ui_passwords
    return RequestGuard(app, settings.ui_url, PasswordFile.read_file(path) if path else None)


@contextlib.asynccontextmanager
async def _announce_start(text: str, _app: Starlette) -> AsyncIterator[None]:
    """Print a text when the application takes requests: it is to be the last of a start."""
    click.echo(text)
    # As Dagster's own: a server that is told to end cancels what waits here.
    with contextlib.suppress(asyncio.CancelledError):
        yield
