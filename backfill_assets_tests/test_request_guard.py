"""The door of the UI, in front of Dagster's own web server: who comes in and what is refused."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import dagster as dg
import pytest
import uvicorn
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import EmptyWorkspaceTarget
from dagster_webserver.app import create_app_from_workspace_process_context
from starlette.applications import Starlette

from backfill_assets.cli import main
from backfill_assets.serve import supervisor
from backfill_assets.serve.supervisor import PasswordFile, write_password
from backfill_assets.serve.webserver import RequestGuard, guard_app
from backfill_assets.settings import SettingsError, load_settings
from backfill_assets_tests.helpers.command_line import refusal_message
from backfill_assets_tests.helpers.process_kills import wait_for

MUTATION = "mutation{__typename}"
BY_LINK = f"/graphql?query={MUTATION}"
BODY = json.dumps({"query": MUTATION})
EXECUTED = {"data": {"__typename": "Mutation"}}
UI = "https://dagster.example"
JSON = {"Content-Type": "application/json"}
UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
}


class Site:
    """A web server on this machine, asked as a browser or another program would."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"

    def ask(self, method: str, path: str, body: str | None = None, **headers: str) -> tuple:
        """Status and text; `PORT` in a header stands for that of the server."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        sent = {n.replace("_", "-"): v.replace("PORT", str(self.port)) for n, v in headers.items()}
        connection.putrequest(method, path, skip_host="Host" in sent)
        if body is not None:
            sent["Content-Length"] = str(len(body))
        for header in sent.items():
            connection.putheader(*header)
        connection.endheaders(body.encode() if body else None)
        answer = connection.getresponse()
        text = "" if answer.status == 101 else answer.read().decode()
        connection.close()
        return answer.status, text


@pytest.fixture(scope="module")
def dagsters(tmp_path_factory) -> Iterator[Starlette]:
    """Dagster's own web server."""
    with (
        dg.DagsterInstance.local_temp(str(tmp_path_factory.mktemp("home"))) as instance,
        WorkspaceProcessContext(instance, EmptyWorkspaceTarget()) as context,
    ):
        yield create_app_from_workspace_process_context(context)


def serve_app(app) -> Iterator[Site]:
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run)
    thread.start()
    wait_for(lambda: server.started)
    yield Site(server.servers[0].sockets[0].getsockname()[1])
    server.should_exit = True
    thread.join()


@pytest.fixture(scope="module")
def bare(dagsters) -> Iterator[Site]:
    yield from serve_app(dagsters)


@pytest.fixture(scope="module")
def site(dagsters) -> Iterator[Site]:
    yield from serve_app(guard_app(dagsters, load_settings(ui_url=UI)))


FOREIGN = [
    ("GET", BY_LINK, None, {}, 405, "asked by POST"),
    ("GET", "/%67raphql?query=" + MUTATION, None, {}, 405, "asked by POST"),
    ("GET", BY_LINK.replace("?", "/?"), None, {}, 405, "asked by POST"),
    ("GET", BY_LINK.replace("?", "%0A?"), None, {}, 405, "asked by POST"),
    ("GET", "/" + BY_LINK, None, {}, 405, "asked by POST"),
    ("HEAD", BY_LINK, None, {}, 405, ""),
    ("GET", BY_LINK, None, {"Accept": "image/*"}, 405, "asked by POST"),
    # A name that leads here for a page of evil.example: DNS rebinding.
    ("GET", "/", None, {"Host": "evil.example"}, 403, "not 'evil.example'"),
    ("POST", "/graphql", BODY, {"Host": "evil.example:PORT", **JSON}, 403, "evil.example"),
    ("GET", "/", None, {"Host": "127.0.0.1.evil.example"}, 403, "This server is 127.0.0.1"),
    ("GET", "/", None, {"Host": "evil.example@127.0.0.1"}, 403, "This server is 127.0.0.1"),
    ("GET", "/", None, {"Host": ""}, 403, "This server is 127.0.0.1"),
    # Pages of elsewhere: also of another port of this machine, of a frame without an address, and
    # of the right name without its TLS.
    ("POST", "/graphql", BODY, {"Origin": "http://evil.example", **JSON}, 403, "a foreign one"),
    ("POST", "/graphql", BODY, {"Origin": "http://127.0.0.1:1", **JSON}, 403, "a foreign one"),
    ("POST", "/graphql", BODY, {"Origin": "null", **JSON}, 403, "a foreign one"),
    (
        "POST", "/graphql", BODY,
        {"Origin": "http://dagster.example", "Host": "dagster.example", **JSON}, 403, "foreign",
    ),
    ("POST", "/graphql", BODY, {"Sec_Fetch_Site": "cross-site", **JSON}, 403, "a foreign page"),
    ("POST", "/graphql", BODY, {"Sec_Fetch_Site": "same-site", **JSON}, 403, "a foreign page"),
    ("POST", "/report_asset_materialization/a", None, {"Origin": "http://e"}, 403, "foreign"),
    # What a form can send without asking.
    ("POST", BY_LINK, "", {"Content_Type": "text/plain"}, 415, "text/plain"),
    ("POST", "/graphql", BODY, {"Content_Type": "text/plain; application/json"}, 415, "form"),
    ("POST", BY_LINK, "", {"Content_Type": "Multipart/Form-Data; boundary=x"}, 415, "form"),
    ("POST", BY_LINK, "", {"Content_Type": "application/x-www-form-urlencoded"}, 415, "form"),
    ("GET", "/graphql", None, {"Origin": "http://evil.example", **UPGRADE}, 403, "a foreign one"),
    ("GET", "/graphql", None, {"Host": "evil.example", **UPGRADE}, 403, "evil.example"),
    # A page within another one, where clicks are lured onto it; and pictures.
    (
        "GET", "/", None,
        {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "iframe"},
        403, "may not embed",
    ),
    ("GET", "/logs/x", None, {"Sec_Fetch_Site": "same-site"}, 403, "may not embed"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "path", "body", "headers", "status", "said"), FOREIGN)
def test_what_a_foreign_page_could_send_is_refused(site, method, path, body, headers, status, said):
    actual_status, text = site.ask(method, path, body, **headers)
    assert actual_status == status
    assert said in text
    assert text.count("\n") == (method != "HEAD")  # one sentence


def test_dagsters_own_takes_all_of_that(bare):
    """If it did not, there would be no need for the door."""
    for path, headers in [
        (BY_LINK, {}),
        (BY_LINK.replace("?", "%0A?"), {}),
        (BY_LINK, {"Host": "evil.example", "Sec_Fetch_Site": "cross-site"}),
    ]:
        status, text = bare.ask("GET", path, **headers)
        assert (status, json.loads(text)) == (200, EXECUTED)
    status, text = bare.ask("POST", BY_LINK, "", Content_Type="text/plain", Origin="http://e")
    assert (status, json.loads(text)) == (200, EXECUTED)
    assert bare.ask("GET", "/graphql", Origin="http://evil.example", **UPGRADE)[0] == 101


@pytest.mark.parametrize(
    "headers",
    [
        {},  # curl, the package's own tests
        {"Origin": "http://127.0.0.1:PORT", "Sec_Fetch_Site": "same-origin"},
        {"Host": "localhost:8080", "Origin": "http://localhost:8080"},  # a tunnel
        {"Host": "[::1]:PORT", "Origin": "http://[::1]:PORT"},
        {"Host": "dagster.example", "Origin": UI},  # a proxy that keeps the name
        {"Origin": UI},  # and one that does not
        {"Host": "DAGSTER.example", "Origin": UI.upper()},
    ],
)
def test_what_belongs_to_it_comes_in(site, headers):
    status, text = site.ask("POST", "/graphql", BODY, **JSON, **headers)
    assert (status, json.loads(text)) == (200, EXECUTED)
    host = {"Host": headers["Host"]} if "Host" in headers else {}
    assert site.ask("GET", "/server_info", **host)[0] == 200
    origin = {"Origin": headers["Origin"]} if "Origin" in headers else {}
    assert site.ask("GET", "/graphql", **host, **origin, **UPGRADE)[0] == 101


def test_links_from_elsewhere_lead_in(site):
    """An alert's, and those of the lateness page."""
    followed = {"Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document"}
    assert site.ask("GET", "/runs", Sec_Fetch_Site="cross-site", **followed)[0] == 200


def test_looking_changes_nothing(site, dagsters):
    """What reports events takes them by POST alone; and the page for typing queries runs none."""
    for route in dagsters.routes:
        if "report_asset" in getattr(route, "path", ""):
            assert route.methods == {"POST"}
    status, page = site.ask("GET", BY_LINK, Accept="text/html")
    assert (status, "GraphiQL" in page, "Mutation" in page) == (200, True, False)
    status, _ = site.ask("GET", "/report_asset_materialization/a?partition=2024-01-01")
    assert status == 200  # the UI's own page
    for way_out in ("/logs/../../dagster/yaml", "/logs/..%2f..%2fdagster/yaml"):
        assert site.ask("GET", way_out)[0] in (404, 500)


# Names and passwords.


def basic_header(credentials: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(credentials.encode()).decode()}


@pytest.fixture
def file(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(supervisor, "_COST", {"n": 2, "r": 8, "p": 1})
    path = tmp_path / "of the user" / "people"
    monkeypatch.setenv("BACKFILL_ASSETS_UI_PASSWORDS", str(path))
    return path


def test_nobody_comes_in_without_a_password(dagsters, file):
    write_password(file, "anna", "correct: horse")
    write_password(file, "bert", "é")
    for site in serve_app(guard_app(dagsters, load_settings())):
        requests = [("GET", "/", None, {}), ("POST", "/graphql", BODY, JSON)]
        requests += [("GET", "/server_info", None, {}), ("GET", "/graphql", None, UPGRADE)]
        for method, path, body, headers in requests:
            for credentials in ("anna:", "anna:correct", "bert:correct: horse", ":", "", "carl:x"):
                assert (
                    site.ask(method, path, body, **headers, **basic_header(credentials))[0] == 401
                )
            status, text = site.ask(method, path, body, **headers)
            assert (status, text) == (401, "Give your name and password.\n")
            for credentials in ("anna:correct: horse", "bert:é"):
                status, _ = site.ask(method, path, body, **headers, **basic_header(credentials))
                assert status in (200, 101)
        for odd in ("Basic", "Basic ?", "Bearer x", "Basic " + "A" * 9):
            assert site.ask("GET", "/", Authorization=odd)[0] == 401
        # A foreign page's requests carry what its user has given: they do not get that far.
        foreign = {"Origin": "http://evil.example", **JSON, **basic_header("bert:é")}
        assert site.ask("POST", "/graphql", BODY, **foreign)[0] == 403


def test_a_password_is_slow_to_guess_and_is_not_kept(tmp_path):
    write_password(tmp_path / "people", "anna", "hunter2")
    text = (tmp_path / "people").read_text()
    assert "hunter2" not in text
    assert (tmp_path / "people").stat().st_mode & 0o777 == 0o600
    assert supervisor._COST["n"] * supervisor._COST["p"] * supervisor._COST["r"] >= 2**19
    assert PasswordFile.read_file(tmp_path / "people").is_valid(
        basic_header("anna:hunter2")["Authorization"]
    )


def test_the_command_that_writes_passwords(file, monkeypatch, capsys):
    class Pipe:
        def __init__(self, text: str) -> None:
            self.text = text

        def isatty(self) -> bool:
            return False

        def readline(self) -> str:
            return self.text

    def set_password(text: str, name: str = "anna") -> int:
        monkeypatch.setattr("sys.stdin", Pipe(text))
        return main(["password", name])

    assert set_password("one\n") == set_password("two\n") == set_password("three\n", "bert") == 0
    assert "three" not in capsys.readouterr().out
    stored_passwords = PasswordFile.read_file(file)
    assert [
        stored_passwords.is_valid(basic_header(credentials)["Authorization"])
        for credentials in ("anna:one", "anna:two")
    ] == [
        False,
        True,
    ]
    assert set_password("x\n", "a:b") == 2
    capsys.readouterr()
    assert set_password("") == 3
    assert "empty password" in refusal_message(capsys, "password")
    monkeypatch.delenv("BACKFILL_ASSETS_UI_PASSWORDS")
    assert set_password("x\n") == 3
    assert "BACKFILL_ASSETS_UI_PASSWORDS is not set" in refusal_message(capsys, "password")


@pytest.mark.parametrize(
    ("text", "mode", "said"),
    [
        (None, 0, "cannot be read (FileNotFoundError)"),
        ("anna:00:00\n", 0o644, "may be read by others: chmod 600"),
        ("anna:00:00\n", 0o640, "may be read by others: chmod 600"),
        ("", 0o600, "is empty: nobody could use the UI"),
        ("anna:00:00\nbert:secret\n", 0o600, "line 2 is none that"),
        ("anna:00:zz\n", 0o600, "line 1 is none that"),
    ],
)
def test_a_file_that_is_not_as_it_should_be(file, text, mode, said):
    if text is not None:
        file.parent.mkdir()
        file.write_text(text)
        file.chmod(mode)
    with pytest.raises(SettingsError) as caught:
        guard_app(Starlette(), load_settings())
    assert said in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_door_without_passwords_asks_nobody():
    assert RequestGuard(Starlette(), UI)._passwords is None
