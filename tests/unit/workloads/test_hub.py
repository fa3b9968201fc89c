from __future__ import annotations

import socket
import threading

import pytest
from huggingface_hub import constants

from dynbench.errors import DataError, HubError, UsageError
from dynbench.workloads import hub


@pytest.mark.parametrize(
    ("cached", "network", "wanted"),
    [
        ("whole", "untouched", True),
        ("in part", "reached", False),
        ("in part", "unreachable", "is incomplete in the hub's cache .*127.0.0.1:9 cannot be reached"),
        ("nothing", "unreachable", "is not in the hub's cache .*127.0.0.1:9 cannot be reached"),
        ("nothing", "forbidden", "HF_HUB_OFFLINE forbids the network"),
        ("nothing", "lacks it", "cannot be loaded from http://127.0.0.1:9: no such thing\n"),
    ],
)
def test_the_network_is_asked_for_what_the_cache_lacks(
    model_folder, cache_on_hub, monkeypatch, cached, network, wanted
):
    """What is loaded says whether it is of the cache; what cannot be is one line."""
    if cached != "nothing":
        cache_on_hub("someone/tiny", model_folder)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", network == "forbidden")
    if network != "unreachable":
        answers = network in ("reached", "lacks it")
        monkeypatch.setattr(hub, "why_unreachable", lambda *_: "" if answers else pytest.fail("asked the network"))

    def load(local_only: bool) -> bool:
        if cached == "whole" or (network == "reached" and not local_only):
            return local_only
        raise OSError("no such thing\nand much advice")

    if isinstance(wanted, bool):
        assert hub.load_from_hub("k", "someone/tiny", load, "") is wanted
        return
    with pytest.raises(HubError, match=f"^k: 'someone/tiny' .*{wanted}") as caught:
        hub.load_from_hub("k", "someone/tiny", load, "the ways out")
    assert caught.value.hint == "the ways out"


def test_what_is_no_name_is_refused():
    with pytest.raises(UsageError, match=r"^k: 'two words' is neither a local folder nor a hub name"):
        hub.load_from_hub("k", "two words", bool, "")


def test_a_hub_that_never_answers_is_given_up_and_any_answer_will_do():
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = f"http://127.0.0.1:{server.getsockname()[1]}"
        assert "timed out" in hub.why_unreachable(endpoint, 0.2)
        server.accept()
        threading.Thread(target=lambda: server.accept()[0].sendall(b"HTTP/1.0 404 Not Found\r\n\r\n")).start()
        assert hub.why_unreachable(endpoint, 30) == ""


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
