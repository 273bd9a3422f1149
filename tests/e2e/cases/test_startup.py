"""Starting: rotary settings, the model's name, addresses to listen on, limits of a container."""
import contextlib
import os
import pathlib
import re
import socket
import subprocess
import tempfile
import time

import httpx
import numpy as np
import pytest

import conftest
from conftest import BINARY, Server

from .client import chat, complete, get, good, user
from .models import TINY, TINY_LLAMA3, Gguf, llama_reference, tiny_model
from .processes import limited
from .registry import case

# avx512-bf16 kernels round the activations of bf16 weights.
EXACT = ("--isa", "avx2")
LLAMA3 = {"rope_type": "llama3", "factor": 32.0, "original_max_position_embeddings": 256, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "rope_theta": 500000.0}


def rope(**changes):
    settings = {name: value for name, value in (LLAMA3 | changes).items() if value is not None}
    return {"rope_parameters": settings}


def reference(settings, ids):
    """The five largest log-probabilities after `ids`, by the numpy model."""
    config, weights = llama_reference.load(TINY_LLAMA3)
    logits = llama_reference.logits(config | {"rope_parameters": settings}, weights, ids)[-1]
    return np.sort(logits - np.logaddexp.reduce(logits))[::-1][:5]


def served(server, ids):
    reply = complete(server, {"prompt": ids, "max_tokens": 1, "temperature": 0, "logprobs": 5})
    values = list(reply["choices"][0]["logprobs"]["top_logprobs"][0].values())
    assert 1 <= len(values) <= 6
    return np.sort(values)[::-1]


def ids_of(count):
    return [3 + (n * 7919) % 500 for n in range(count)]


def gguf_with_frequencies(path):
    """What llama.cpp's converter makes of llama3 scaling: a tensor by which the frequencies are divided."""
    gguf = Gguf(TINY_LLAMA3)
    plain = 1.0 / LLAMA3["rope_theta"] ** (np.arange(0, 16, 2) / 16)
    gguf.add_tensor("rope_freqs.weight", plain / llama_reference.inverse_frequencies(LLAMA3, 16))
    return gguf.write(path)


@pytest.mark.parametrize("length", [11, 301, pytest.param(2901, marks=pytest.mark.slow)])
@case("BC-149")
def test_llama3_scaling_is_used_in_both_formats(servers, tmp_path_factory, length):
    base = tmp_path_factory.getbasetemp()
    folder, file, old = base / "llama3", base / "llama3.gguf", base / "llama3-type"
    if not folder.exists():
        tiny_model(folder, source=TINY_LLAMA3, config=rope())
        scaling = LLAMA3 | {"type": "llama3"}
        del scaling["rope_type"], scaling["rope_theta"]
        tiny_model(old, source=TINY_LLAMA3,
                   config={"rope_parameters": None, "rope_scaling": scaling, "rope_theta": LLAMA3["rope_theta"]})
        gguf_with_frequencies(file)
    expected = reference(LLAMA3, ids_of(length))
    if length > 256:
        assert np.abs(expected - reference(LLAMA3 | {"rope_type": "default"}, ids_of(length))).max() > 0.1, "it shows"
    for model in (folder, file, old):
        got = served(servers(*EXACT, model=str(model)), ids_of(length))
        assert abs(got[0] - expected[0]) < 1e-2, model
        assert all(np.abs(expected - value).min() < 1e-2 for value in got), (model, got, expected)


@case("BC-149")
def test_linear_scaling_is_used_and_unknown_scaling_refused(servers, tmp_path_factory, monkeypatch):
    base = tmp_path_factory.getbasetemp()
    linear = {"rope_type": "linear", "factor": 4.0, "rope_theta": 500000.0}
    model = tiny_model(base / "linear", source=TINY_LLAMA3, config={"rope_parameters": linear})
    got = served(servers(*EXACT, model=model), ids_of(301))
    plain = reference(linear | {"rope_type": "default"}, ids_of(301))
    frequencies = llama_reference.inverse_frequencies
    monkeypatch.setattr(llama_reference, "inverse_frequencies", lambda settings, dim: frequencies(
        settings | {"rope_type": "default"}, dim) / 4.0)
    expected = reference(linear, ids_of(301))
    assert abs(got[0] - expected[0]) < 1e-2 and np.abs(expected - plain).max() > 0.1
    for settings in ({"rope_type": "spiral"}, {"rope_type": None, "type": "spiral"}, {"rope_type": None}, {"factor": None},
                     {"factor": 0.0}, {"factor": "many"}):
        model = tiny_model(pathlib.Path(tempfile.mkdtemp(dir=base)) / "model", source=TINY_LLAMA3, config=rope(**settings))
        run = subprocess.run([BINARY, "serve", "--model", model, "--port", "0"], capture_output=True, text=True, timeout=30)
        assert run.returncode > 0 and "config.json" in run.stderr, (settings, run.stderr)
        assert "rope" in run.stderr or "factor" in run.stderr, run.stderr


@pytest.mark.parametrize("ending", ["", "/", "//", "/."])
@case("BC-154")
def test_the_models_id_is_the_folders_name(tmp_path, ending):
    tiny_model(tmp_path / "some-model")
    with Server(model=f"{tmp_path}/some-model{ending}") as server:
        assert [model["id"] for model in good(get(server, "/v1/models"))["data"]] == ["some-model"]
        assert good(get(server, "/v1/models/some-model"))["id"] == "some-model"
        assert chat(server, {"model": "some-model", "messages": user("Hi"), "max_tokens": 1})["model"] == "some-model"
        assert server.stop() == 0


# ---- addresses

@contextlib.contextmanager
def listening(host, *commands):
    """A server on `host`: its port, and all that it told at start."""
    with tempfile.TemporaryFile("w+") as told:
        start = [BINARY, "serve", "--model", str(TINY), "--port", "0", "--host", host]
        if commands:
            start = ["unshare", "-m", "bash", "-ec", "; ".join([*commands, 'exec "$@"']), "bash", *start]
        process = subprocess.Popen(start, stdout=told, stderr=subprocess.STDOUT)
        try:
            deadline = time.monotonic() + 30
            while True:
                told.seek(0)
                output = told.read()
                if found := re.search(r" on http://\S+:(\d+)", output):
                    yield int(found.group(1)), output
                    return
                assert process.poll() is None and time.monotonic() < deadline, output
                time.sleep(0.02)
        finally:
            process.terminate()
            process.wait(20)


def answers(address, port):
    url = f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"
    try:
        return httpx.get(url + "/health", timeout=5, trust_env=False).status_code == 200
    except httpx.ConnectError:
        return False


def has_ipv6():
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
        return True
    return False


@case("BC-155")
def test_every_address_that_is_asked_for_is_served():
    families = ["127.0.0.1"] + (["::1"] if has_ipv6() else [])
    wanted = {"127.0.0.1": ["127.0.0.1"], "0.0.0.0": ["127.0.0.1"]}
    if has_ipv6():
        wanted |= {"::": families, "::1": ["::1"]}
    for host, addresses in wanted.items():
        with listening(host) as (port, output):
            assert all(answers(address, port) for address in addresses), (host, output)
    for host in ("/tmp/socket", "no.such.host.invalid", "[::1", "300.1.2.3", ""):
        run = subprocess.run([BINARY, "serve", "--model", str(TINY), "--port", "0", "--host", host], capture_output=True,
                             text=True, timeout=30)
        assert run.returncode > 0 and (host in run.stderr or "host" in run.stderr), (host, run.stderr)


def resolved(names):
    """Makes localhost mean these addresses, if this machine lets us; else it means what it means here."""
    fake = f"printf '{names}' > $t"
    commands = ["t=$(mktemp)", fake, "mount --bind $t /etc/hosts"]
    allowed = subprocess.run(["unshare", "-m", "bash", "-ec", "; ".join(commands)], capture_output=True).returncode == 0
    return commands if allowed else []


@pytest.mark.parametrize("first, second", [("127.0.0.1", "::1"), ("::1", "127.0.0.1")])
@case("BC-155")
def test_localhost_is_served_on_all_its_addresses_or_the_log_names_one(first, second):
    commands = resolved(f"{first} localhost\\n{second} localhost\\n")
    with listening("localhost", *commands) as (port, output):
        here = commands or {found[4][0] for found in socket.getaddrinfo("localhost", None)}
        addresses = [first, second] if commands else here
        served_ones = [address for address in addresses if answers(address, port)]
        assert served_ones, output
        if len(served_ones) < len(list(addresses)) and (has_ipv6() or "::1" in served_ones):
            assert any(f"{address}:{port}" in output or f"[{address}]:{port}" in output for address in served_ones), output


# ---- limits of a container

GIB = 1 << 30


def pool_gib(server):
    return float(re.search(r"KV pool \d+ tokens \((\d+\.\d+) GiB\)", server.read(server.out)).group(1))


def make_group():
    """A real group of this machine with a limit of 1 GiB: the file that takes a pid, or None."""
    for parent, limit in ((pathlib.Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
                          (pathlib.Path("/sys/fs/cgroup"), "memory.max")):
        group = parent / f"tandem-cases-{os.getpid()}"
        with contextlib.suppress(OSError):
            group.mkdir()
            (group / limit).write_text(str(GIB))
            return group
        with contextlib.suppress(OSError):
            group.rmdir()
    return None


PRETEND = {  # files below /sys/fs/cgroup and the lines of /proc/self/cgroup
    "v2 at the root": ({"memory.max": GIB, "memory.current": 0, "cgroup.controllers": "memory"}, "0::/"),
    "v2 at the own path": ({"cgroup.controllers": "memory", "system.slice/tandem.service/memory.max": GIB,
                            "system.slice/tandem.service/memory.current": 0}, "0::/system.slice/tandem.service"),
    "v2 at a parent": ({"cgroup.controllers": "memory", "pod/memory.max": GIB, "pod/memory.current": 0,
                        "pod/tandem/memory.max": "max", "pod/tandem/memory.current": 0}, "0::/pod/tandem"),
    "v1": ({"memory/memory.limit_in_bytes": GIB, "memory/memory.usage_in_bytes": 0,
            "memory/docker/x/memory.limit_in_bytes": GIB, "memory/docker/x/memory.usage_in_bytes": 0}, "4:memory:/docker/x"),
}


def within_share(server):
    """The pool is at most 30 % of what the limit leaves, or a line says that no limit was found."""
    log = server.read(server.log) + server.read(server.out)
    return pool_gib(server) <= 0.3 + 0.01 or re.search(r"no .*(cgroup|memory) .*limit|limit.* not found", log) is not None


@case("BC-172")
def test_the_pool_is_sized_by_the_containers_limit(monkeypatch, tmp_path):
    """In a real group where this machine lets us make one."""
    group = make_group()
    if group is None:
        pytest.skip("this machine lets nobody make a control group; the next test pretends one")
    try:
        with limited(monkeypatch, tmp_path, f"echo $$ > {group}/cgroup.procs"), Server() as server:
            assert within_share(server), server.read(server.out) + server.read(server.log)
            assert server.stop() == 0
    finally:
        for _ in range(50):
            with contextlib.suppress(OSError):
                group.rmdir()
                break
            time.sleep(0.1)


@pytest.mark.parametrize("form", PRETEND)
@case("BC-172")
def test_limits_are_found_where_containers_have_them(monkeypatch, tmp_path, form):
    files, own = PRETEND[form]
    for name, content in files.items():
        path = tmp_path / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")
    (tmp_path / "own").write_text(own + "\n")
    mounts = [f"mount --bind {tmp_path}/cgroup /sys/fs/cgroup", f"mount --bind {tmp_path}/own /proc/$$/cgroup"]
    probe = subprocess.run(["unshare", "-m", "bash", "-ec", "; ".join(mounts)], capture_output=True)
    if probe.returncode != 0:
        pytest.skip("this machine lets nobody pretend a control group")
    inner = tmp_path / "inner"
    inner.write_text("\n".join(["#!/bin/bash", "set -e", *mounts, f'exec {conftest.BINARY} "$@"', ""]))
    inner.chmod(0o755)
    with limited(monkeypatch, tmp_path, f'exec unshare -m {inner} "$@"'), Server() as server:
        assert within_share(server), server.read(server.out) + server.read(server.log)
        assert server.stop() == 0
