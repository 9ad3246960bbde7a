"""The server refuses other hosts, other sites and every request that is no reading."""

import http.client

import pytest

from shoal.cli.main import main
from shoal.errors import ShoalError
from shoal.watch.guard import make_guard
from tests.watch.folders import write_run
from tests.watch.serving import served

TOKEN = "open-sesame"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    write_run(folder / "run")
    with served(folder) as found:
        yield found


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    with served(tmp_path_factory.mktemp("runs"), token=TOKEN) as found:
        yield found


def ask(server, path="/api/runs", method="GET", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=10)
    connection.request(method, path, headers={name.replace("_", "-"): x for name, x in headers.items()})
    answer = connection.getresponse()
    answer.body = answer.read()
    connection.close()
    return answer


@pytest.mark.parametrize("host", ["localhost", "localhost:8080", "127.0.0.1:1", "[::1]:8080"])
def test_its_own_names_are_served(server, host):
    assert ask(server, Host=host).status == 200


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "192.168.0.1", "[", ""])
def test_another_host_is_refused(server, host):
    """A site whose name leads to this machine (DNS rebinding) reads nothing."""
    assert ask(server, Host=host).status == 403


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://localhost:9"])
def test_another_origin_is_refused(server, origin):
    assert ask(server, Host="localhost:8080", Origin=origin).status == 403
    assert ask(server, Host="localhost:8080", Origin="http://localhost:8080").status == 200


def test_another_site_may_link_to_it_and_no_more(server):
    assert ask(server, Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="no-cors").status == 403
    assert ask(server, "/", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="navigate").status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_can_be_written(server, method):
    assert ask(server, method=method).status == 405


def test_the_browser_is_told_to_trust_nothing(server):
    headers = ask(server, "/").headers
    assert headers["Content-Security-Policy"].startswith("default-src 'none'")
    assert "unsafe" not in headers["Content-Security-Policy"]
    assert headers["X-Content-Type-Options"] == "nosniff"


def test_what_has_not_changed_is_not_sent(server):
    tag = ask(server).headers["ETag"]
    again = ask(server, If_None_Match=tag)
    assert (again.status, again.body) == (304, b"")


def test_a_token_opens_the_page(guarded):
    assert ask(guarded).status == 403
    assert ask(guarded, "/").status == 403
    assert ask(guarded, "/?token=wrong-word").status == 403
    opened = ask(guarded, f"/?token={TOKEN}")
    assert (opened.status, opened.headers["Location"]) == (303, "/")
    cookie = opened.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert TOKEN not in cookie
    assert ask(guarded, Cookie=cookie.split(";")[0]).status == 200
    assert ask(guarded, Cookie=cookie.split(";")[0][:-1]).status == 403
    assert ask(guarded, Cookie=cookie.partition("=")[0] + '="\u00e9"').status == 403
    assert ask(guarded, Host="lab.example:8080", Cookie=cookie.split(";")[0]).status == 200


def test_other_machines_need_a_token():
    with pytest.raises(ShoalError, match="needs --token"):
        make_guard("0.0.0.0", 8080, None)
    with pytest.raises(ShoalError, match="at least 8"):
        make_guard("0.0.0.0", 8080, "short")


def test_the_command_says_what_is_wrong(server, tmp_path, capsys):
    assert main(["watch", str(tmp_path), "--host", "0.0.0.0"]) == 2
    assert "lets other machines read these runs, so it needs --token" in capsys.readouterr().err
    assert main(["watch", str(tmp_path), "--port", str(server.server_address[1])]) == 2
    assert "choose another --port" in capsys.readouterr().err
    assert main(["watch", str(tmp_path / "nothing")]) == 2
    assert "there is no run" in capsys.readouterr().err
