from __future__ import annotations

import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from huggingface_hub import constants

from dynbench.errors import DataError, HubError, UsageError
from dynbench.workloads import hub


@pytest.fixture
def answering_endpoint(monkeypatch):
    """A hub that knows nothing, and says so."""

    class NotFound(BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.send_error(404)

        def log_message(self, *args):
            pass

    server = HTTPServer(("127.0.0.1", 0), NotFound)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    yield
    server.shutdown()
    server.server_close()


def not_here(local_only: bool) -> str:
    raise OSError("no such thing\nand much advice")


def test_cached_objects_never_touch_the_network(model_folder, cache_on_hub, monkeypatch):
    cache_on_hub("someone/tiny", model_folder)
    monkeypatch.setattr(hub, "why_unreachable", lambda *_: pytest.fail("asked the network"))
    assert hub.load_from_hub("k", "someone/tiny", lambda local_only: local_only, "") is True


def test_an_unreachable_hub_is_one_line_and_soon():
    with pytest.raises(HubError) as caught:
        hub.load_from_hub("workload.model", "someone/tiny", not_here, "the ways out")
    assert "workload.model: 'someone/tiny' is not in the hub's cache" in caught.value.message
    assert "http://127.0.0.1:9 cannot be reached" in caught.value.message
    assert "\n" not in caught.value.message
    assert caught.value.hint == "the ways out"


def test_a_hub_that_never_answers_is_given_up(monkeypatch):
    monkeypatch.setattr(hub, "CONNECT_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(HubError, match="timed out"):
            hub.load_from_hub("k", "someone/tiny", not_here, "")


def test_offline_mode_is_respected(monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(hub, "why_unreachable", lambda *_: pytest.fail("asked the network"))
    with pytest.raises(HubError, match="HF_HUB_OFFLINE forbids the network"):
        hub.load_from_hub("k", "someone/tiny", not_here, "")


def test_an_incomplete_cache_is_completed_from_the_hub(model_folder, cache_on_hub, answering_endpoint):
    cache_on_hub("someone/tiny", model_folder)

    def weights_are_missing(local_only: bool) -> str:
        return not_here(local_only) if local_only else "downloaded"

    assert hub.load_from_hub("k", "someone/tiny", weights_are_missing, "") == "downloaded"


def test_an_incomplete_cache_without_network_says_so(model_folder, cache_on_hub):
    cache_on_hub("someone/tiny", model_folder)
    with pytest.raises(HubError, match="is incomplete in the hub's cache"):
        hub.load_from_hub("k", "someone/tiny", not_here, "")


def test_what_the_hub_does_not_have_is_said_with_its_first_line(answering_endpoint):
    with pytest.raises(HubError) as caught:
        hub.load_from_hub("k", "someone/tiny", not_here, "")
    assert caught.value.message.endswith("no such thing")


def test_names_that_cannot_be_on_the_hub_are_refused():
    with pytest.raises(UsageError, match="neither a local folder nor a hub name"):
        hub.load_from_hub("k", "two words", not_here, "")


def test_local_folders_and_paths_are_told_from_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="k: model is an empty folder"):
        hub.local_folder("k", "model")
    (tmp_path / "model" / "config.json").write_text("{}")
    assert hub.local_folder("k", str(tmp_path / "model")) == tmp_path / "model"
    assert hub.local_folder("k", "model") is not None
    assert hub.local_folder("k", "someone/tiny") is None
    for mistake in ("./absent", "/absent", "~/absent-folder", "a/b/c", "file"):
        with pytest.raises(DataError, match="expected a folder or a hub name"):
            hub.local_folder("k", mistake)
