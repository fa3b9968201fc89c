from __future__ import annotations

import re
import socket
import threading

import pytest
from huggingface_hub import constants

from dynbench.errors import DataError, HubError, UsageError
from dynbench.workloads import hub


def not_here(local_only: bool) -> str:
    raise OSError("no such thing\nand much advice")


def test_cached_objects_never_touch_the_network(model_folder, cache_on_hub, monkeypatch):
    cache_on_hub("someone/tiny", model_folder)
    monkeypatch.setattr(hub, "why_unreachable", lambda *_: pytest.fail("asked the network"))
    assert hub.load_from_hub("k", "someone/tiny", lambda local_only: local_only, "") is True


@pytest.mark.parametrize(
    ("name", "is_cached", "offline", "answers", "message"),
    [
        ("someone/other", False, False, False, "is not in the hub's cache .*127.0.0.1:9 cannot be reached"),
        ("someone/other", False, True, False, "HF_HUB_OFFLINE forbids the network"),
        ("someone/other", False, False, True, "cannot be loaded from http://127.0.0.1:9: no such thing$"),
        ("someone/tiny", True, False, False, "is incomplete in the hub's cache"),
        ("two words", False, False, False, "'two words' is neither a local folder nor a hub name"),
    ],
)
def test_what_cannot_be_loaded_is_one_line(
    model_folder, cache_on_hub, monkeypatch, name, is_cached, offline, answers, message
):
    if is_cached:
        cache_on_hub(name, model_folder)
    if offline or answers:
        monkeypatch.setattr(hub, "why_unreachable", lambda *_: "" if answers else pytest.fail("asked the network"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
    with pytest.raises((HubError, UsageError)) as caught:
        hub.load_from_hub("workload.model", name, not_here, "the ways out")
    assert re.search(f"^workload.model: .*{message}", caught.value.message) and caught.value.hint == "the ways out"


def test_a_hub_that_never_answers_is_given_up_and_any_answer_will_do():
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = f"http://127.0.0.1:{server.getsockname()[1]}"
        assert "timed out" in hub.why_unreachable(endpoint, 0.2)
        server.accept()
        threading.Thread(target=lambda: server.accept()[0].sendall(b"HTTP/1.0 404 Not Found\r\n\r\n")).start()
        assert hub.why_unreachable(endpoint, 30) == ""


def test_an_incomplete_cache_is_completed_from_the_hub(model_folder, cache_on_hub, monkeypatch):
    cache_on_hub("someone/tiny", model_folder)
    monkeypatch.setattr(hub, "why_unreachable", lambda *_: "")

    def weights_are_missing(local_only: bool) -> str:
        return not_here(local_only) if local_only else "downloaded"

    assert hub.load_from_hub("k", "someone/tiny", weights_are_missing, "") == "downloaded"


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
