"""What a replacement of a worker needs: descriptors, a process, the model's settings. None of it may be taken by others."""
import contextlib
import json
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import tempfile
import time

import pytest

from conftest import BINARY, Server, wait_until

from .client import COMPLETE, Raw, chat, complete, get, good, post, refused, request_bytes, text
from .models import TINY, Gguf, tiny_model
from .processes import GREEDY, STORY, Listener, ask, both_serve, healthy, limited
from .registry import case


def silent_connections(server, count):
    """Clients that connect and send nothing. The server may refuse or close some of them."""
    connections = []
    for _ in range(count):
        try:
            connections.append(Raw(server, timeout=5))
        except OSError:
            break
    return connections


@case("BC-157")
def test_silent_connections_stop_neither_clients_nor_recovery(monkeypatch, tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2000:
        pytest.skip("this machine lets no client open 1,200 connections")
    with contextlib.ExitStack() as stack, limited(monkeypatch, tmp_path, "ulimit -n 1024"), Server() as server:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        administrator = stack.enter_context(Raw(server, timeout=40))
        administrator.send(request_bytes("/health", method="GET")).reply()
        body = STORY | {"max_tokens": 300}
        expected = text(chat(server, body))
        listener = Listener(server, body).wait(3)
        for connection in silent_connections(server, 1200):
            stack.enter_context(connection)
        started = time.monotonic()
        with Raw(server, timeout=5) as probe:
            probe.send(request_bytes("/health", method="GET"))
            assert probe.reply().status_code in (200, 503) and time.monotonic() - started < 5
        before = [server.worker(0), server.worker(1)]
        os.kill(before[1], signal.SIGKILL)
        assert listener.stream().text() == expected
        wait_until(lambda: server.worker(1) not in (None, before[1]), 20, "a new worker beside 1,200 connections")
        administrator.send(request_bytes("/v1/admin/placement", {"replace": ["prefill"]}))
        assert administrator.reply().status_code in (200, 503)
        assert server.process.poll() is None
        log = server.read(server.log)
        assert len(log.splitlines()) < 40, "a few lines, not one for each attempt"
        stack.close()
        wait_until(lambda: healthy(server) == 200, what="health")
        assert text(chat(server, body)) == expected
        assert server.stop() == 0


@case("BC-157")
def test_the_soft_limit_of_descriptors_is_raised(monkeypatch, tmp_path):
    with limited(monkeypatch, tmp_path, "ulimit -Sn 256"), Server(model=str(TINY)) as server:
        limits = pathlib.Path(f"/proc/{server.process.pid}/limits").read_text()
        soft, hard = next(line.split()[3:5] for line in limits.splitlines() if line.startswith("Max open files"))
        assert int(soft) > 256, (soft, hard)
        assert server.stop() == 0


@pytest.fixture
def readable_folder():
    """A folder that another user may read; pytest's own are private."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield pathlib.Path(folder)


@case("BC-175")
def test_a_worker_that_cannot_be_forked_is_tried_again(monkeypatch, readable_folder):
    """RLIMIT_NPROC binds no administrator, so the server runs as somebody else if the test runs as root."""
    somebody = ["setpriv", "--reuid=54321", "--clear-groups"] if os.getuid() == 0 else []
    shutil.copy(BINARY, readable_folder / "tandem")
    model = tiny_model(readable_folder / "model")
    run = f'exec {" ".join(somebody)} {readable_folder / "tandem"} "$@"'
    with limited(monkeypatch, readable_folder, "cd /", run), Server(model=model) as server:
        def limit(soft):
            subprocess.run([*somebody, "prlimit", f"--pid={server.process.pid}", f"--nproc={soft}:"], check=True)

        expected = complete(server, GREEDY)["choices"]
        soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
        limit(1)
        victim = server.worker(1)
        os.kill(victim, signal.SIGKILL)
        deadline = time.monotonic() + 1.2
        while time.monotonic() < deadline:
            assert complete(server, GREEDY)["choices"] == expected, "the other lane serves"
            assert server.process.poll() is None
            time.sleep(0.1)
        assert server.worker(1) is None, "the limit holds"
        state = good(get(server, "/v1/admin/placement"))
        assert [lane["up"] for lane in state["lanes"]] == [True, False], "the missing lane is shown"
        limit(soft if soft >= 0 else "unlimited")
        wait_until(lambda: server.worker(1) is not None and both_serve(server), 30, "the worker's return")
        assert complete(server, GREEDY)["choices"] == expected
        assert server.stop() == 0


@pytest.mark.parametrize("form", ["gguf", pytest.param("folder", marks=pytest.mark.slow)])
@case("BC-178")
def test_a_model_file_that_is_gone_is_not_needed(tmp_path, form):
    if form == "gguf":
        model = Gguf().write(tmp_path / "model.gguf")
    else:
        model = tiny_model(tmp_path / "model")
    away = tmp_path / "elsewhere"
    with Server(model=model) as server:
        expected = complete(server, GREEDY)["choices"]
        for lane in (1, 0):
            os.rename(model, away)
            assert complete(server, GREEDY)["choices"] == expected
            victim = server.worker(lane)
            os.kill(victim, signal.SIGKILL)
            deadline = time.monotonic() + 1
            while time.monotonic() < deadline:
                status, reply = ask(server, GREEDY, COMPLETE, timeout=15)
                assert status == 200 and reply["choices"] == expected, reply
                time.sleep(0.05)
            assert server.process.poll() is None, "the server does not end for a file"
            os.rename(away, model)
            wait_until(lambda: server.worker(lane) not in (None, victim) and both_serve(server), 30, "both workers")
            assert complete(server, GREEDY)["choices"] == expected
        assert server.stop() == 0


@pytest.mark.parametrize("key, value", [("rope_theta", 500.0), ("rms_norm_eps", 0.5)])
@case("BC-179")
def test_settings_that_change_on_disk_change_no_answer(tmp_path, key, value):
    model = pathlib.Path(tiny_model(tmp_path / "model"))
    with Server("--prefix-cache=false", model=str(model)) as server:
        # The prompt is long enough for another theta to show.
        body = GREEDY | {"prompt": [5, 6, 7, 100, 200, 300] * 10}
        expected = complete(server, body)["choices"]
        config = json.loads((model / "config.json").read_text())
        if key == "rope_theta":
            config["rope_parameters"]["rope_theta"] = value
        else:
            config[key] = value
        (model / "config.json").write_text(json.dumps(config))

        def unchanged():
            status, reply = ask(server, body, COMPLETE)
            if status == 200:
                assert reply["choices"] == expected, "new settings over old weights"
            else:
                assert status == 503 and "config.json" in reply["error"]["message"], reply

        for lane in (0, 1):
            victim = server.worker(lane)
            os.kill(victim, signal.SIGKILL)
            unchanged()
            wait_until(lambda: server.worker(lane) not in (None, victim), 20, "a new worker")
            wait_until(lambda: both_serve(server), 20, "both lanes")
            unchanged()
        reply = post(server, "/v1/admin/placement", {"replace": ["prefill", "decode"]})
        assert reply.status_code == 200 or "config.json" in refused(reply, status=reply.status_code)
        unchanged()
        with Server("--prefix-cache=false", model=str(model)) as changed:
            assert complete(changed, body)["choices"] != expected, "the change would show"
            assert changed.stop() == 0
        assert server.stop() == 0
