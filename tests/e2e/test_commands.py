"""The subcommands without a server at their borders: every case of `tandem score` gets an answer, whatever its
neighbours are, and neither odd input nor a lost process ends a command without a message and an exit status.
"""
import json
import os
import signal
import socket
import struct
import subprocess
import time

import pytest

from conftest import BINARY, MODEL, children, command_line, wait_until

SMALL = ("--max-context-tokens", "64", "--kv-cache-tokens", "4096")


def run(*arguments, timeout=120, **options):
    return subprocess.run([BINARY, *map(str, arguments)], capture_output=True, text=True, timeout=timeout, **options)


def score_lines(tmp_path, lines, *flags):
    """The exit status, the output's lines and the log of `tandem score` over raw input lines."""
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_bytes(b"".join(line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines))
    ended = run("score", "--model", MODEL, "--input", source, "--output", target, *SMALL, *flags)
    return ended.returncode, [json.loads(line) for line in target.read_text().splitlines()], ended.stderr


def test_each_case_of_a_score_gets_its_result_or_its_error(tmp_path):
    good = {"text": "The capital of France is", "greedy_tokens": 3}
    cases = [
        (good, None),
        ({"token_ids": list(range(1, 200))}, "maximum context length is 64"),
        (good, None),
        (b"{not json", "JSON object"),
        (b'{"text": "\xff"}', "JSON object"),
        ({"token_ids": [1, 49_152_000]}, "49152000 is not a token id"),
        ({"token_ids": [1, 1 << 40]}, "token_ids[1]"),
        ({"token_ids": [1, 2.5]}, "token_ids[1]"),
        ({"token_ids": []}, "at least one token id"),
        ({"greedy_tokens": 3}, '"token_ids" or "text"'),
        ({"text": 7}, '"text"'),
        ({"text": "Hi", "greedy_tokens": -1}, '"greedy_tokens"'),
        ({"text": "Hi", "greedy_tokens": "many"}, '"greedy_tokens"'),
        (good, None),
    ]
    lines = []
    for case, _ in cases:
        lines += [case, b"\n", b"  \n"]  # blank lines are no cases
    status, out, log = score_lines(tmp_path, lines)
    assert len(out) == len(cases), log
    for (case, error), line in zip(cases, out):
        if error is None:
            assert "error" not in line and len(line["greedy_token_ids"]) == 3, line
        else:
            assert error in line["error"] and "token_ids" not in line, line
    assert out[0] == out[2] == out[-1]
    assert status == 1
    assert "11 of 14 cases failed" in log


def test_a_score_without_failures_exits_with_zero(tmp_path):
    status, out, log = score_lines(tmp_path, [{"text": "Hi"}, b"\n", {"text": "there"}])
    assert status == 0 and len(out) == 2, log


def test_files_that_cannot_be_read_or_written_are_said(tmp_path):
    (tmp_path / "in.jsonl").write_text('{"text": "Hi"}\n')
    for arguments in (
        ("score", "--input", tmp_path, "--output", tmp_path / "out.jsonl"),  # a folder
        ("score", "--input", tmp_path / "none", "--output", tmp_path / "out.jsonl"),
        ("score", "--input", tmp_path / "in.jsonl", "--output", "/dev/full"),
        ("generate", "--messages", tmp_path),
        ("generate", "--messages", tmp_path / "none"),
    ):
        ended = run(arguments[0], "--model", MODEL, *SMALL, *arguments[1:])
        assert ended.returncode in (1, 2), (arguments, ended.returncode, ended.stderr)
        assert "terminate" not in ended.stderr
        assert str(arguments[2]) in ended.stderr or "/dev/full" in ended.stderr, (arguments, ended.stderr)


def test_a_prompt_that_is_not_text_is_refused(tmp_path):
    messages = tmp_path / "messages.json"
    messages.write_bytes(b'[{"role": "user", "content": "\xff"}]')
    for arguments in (("--messages", messages), ("--prompt", b"\xff"), ("--raw", "--prompt", "a " * 200)):
        ended = subprocess.run([BINARY, "generate", "--model", MODEL, *SMALL, "--max-tokens", "2", *arguments],
                               capture_output=True, timeout=120)
        assert ended.returncode in (0, 1, 2), (arguments, ended.returncode, ended.stderr)


def test_a_command_ends_when_its_processes_do(tmp_path):
    """Nobody ended the requests of a command whose owner and workers were gone: it waited for them without end."""
    (tmp_path / "in.jsonl").write_text('{"text": "Hi", "greedy_tokens": 3900}\n' * 9)
    process = subprocess.Popen([BINARY, "score", "--model", MODEL, "--kv-cache-tokens", "40000", "--input",
                                tmp_path / "in.jsonl", "--output", tmp_path / "out.jsonl"], stderr=subprocess.PIPE)
    try:
        wait_until(lambda: len(children(process.pid)) == 3, what="its processes")
        time.sleep(3)
        for pid in sorted(children(process.pid), key=lambda c: command_line(c)[1]):  # the owner first
            os.kill(pid, signal.SIGKILL)
        _, log = process.communicate(timeout=30)
        assert process.returncode == 1
        assert b"the memory owner ended (signal 9 (Killed))" in log
        lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
        assert len(lines) == 9 and all("the memory owner ended" in line["error"] for line in lines)
    finally:
        process.kill()
        process.wait()


def attach(connection, name, size=4096):
    """Asks an owner for a region (src/memory/owner_wire.h); the caller then holds it unpublished, like a worker."""
    connection.send(struct.pack("<IIQ64s", 0x54444F32, 1, size, name))
    return connection.recv(1 << 16)


@pytest.mark.parametrize("form", ((), ("--json",)))
def test_inspect_shows_regions_of_any_name(form):
    address = f"@tandem-test-{os.getpid()}"
    names = [b"worker.x", b"worker.", b"worker.1", b"worker.1.", b"worker.1.2.3", b"worker.-1.1", b"server.7",
             b"worker.99999999999999999999.1", b"worker.1.99999999999999999999999", b"channel.", b"-", b"worker.1.7"]
    owner = subprocess.Popen([BINARY, "owner", "--socket", address], stderr=subprocess.DEVNULL)
    connections = []
    try:
        for name in names:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            connections.append(connection)
            wait_until(lambda: connection.connect_ex(b"\0" + address[1:].encode()) == 0, what="the owner")
            assert attach(connection, name)
        ended = run("inspect", "--owner-socket", address, *form)
        assert ended.returncode == 0, ended.stderr
        for name in names[:-1]:
            assert name.decode() in ended.stdout, name
        if form:
            assert [w["epoch"] for w in json.loads(ended.stdout)["workers"]] == [7]
    finally:
        for connection in connections:
            connection.close()
        owner.kill()
        owner.wait()
