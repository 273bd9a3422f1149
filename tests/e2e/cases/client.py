"""A client that forgives nothing: each reply and each event of a stream must be well formed."""
import base64
import contextlib
import json
import random
import re
import socket
import threading

import httpx

# One pool for all: a connection of its own for each request would cost more than the requests.
HTTP = httpx.Client(trust_env=False, verify=False, timeout=60, limits=httpx.Limits(max_connections=None))


def get(server, path, **options):
    return HTTP.get(server.url + path, **options)


def post(server, path, body, headers=None, timeout=60):
    """`body` is what json.dumps takes, or the raw bytes."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return HTTP.post(server.url + path, content=content, timeout=timeout,
                     headers={"Content-Type": "application/json"} | (headers or {}))


CHAT, COMPLETE = "/v1/chat/completions", "/v1/completions"


def user(text):
    return [{"role": "user", "content": text}]


def chat(server, body):
    """The JSON of a chat that must succeed."""
    return good(post(server, CHAT, body))


def complete(server, body):
    return good(post(server, COMPLETE, body))


def good(reply):
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"].startswith("application/json")
    return json.loads(reply.content.decode("utf-8", "strict"))


def text(reply, index=0):
    choice = reply["choices"][index]
    return choice["message"]["content"] if "message" in choice else choice["text"]


def reason(reply, index=0):
    return reply["choices"][index]["finish_reason"]


def refused(reply, status=400, param=None, code=None):
    """Checks an error as OpenAI's clients read it; returns its message."""
    assert reply.status_code == status, (reply.status_code, reply.text)
    assert reply.headers["content-type"].startswith("application/json"), "an error is never an event stream"
    error = json.loads(reply.content.decode("utf-8", "strict"))["error"]
    assert {"message", "type", "param", "code"} <= error.keys(), error
    assert isinstance(error["message"], str) and error["message"] and isinstance(error["type"], str)
    for leak in ("std::", "nlohmann", "terminate", "exception", "Traceback", "json.exception", ".cpp"):
        assert leak not in error["message"], error
    if param is not None:
        assert error["param"] == param or str(error["param"]).startswith((param + ".", param + "[")), error
    if code is not None:
        assert error["code"] == code, error
    return error["message"]


def alive(server):
    reply = chat(server, {"messages": user("Hi"), "max_tokens": 1})
    assert reply["usage"]["completion_tokens"] == 1


class Stream:
    """A whole event stream: `chunks` are its JSON objects, `error` the last one if it is an error."""

    def __init__(self, raw):
        self.chunks, self.error, self.done, self.comments = [], None, False, 0
        assert raw.endswith(b"\n\n") or not raw, "an event ends with an empty line"
        for block in raw.split(b"\n\n")[:-1]:
            if block.startswith(b":"):
                self.comments += 1
                continue
            assert block.startswith(b"data: ") and b"\n" not in block, block
            assert not self.done and self.error is None, f"{block} follows the end"
            data = block[len(b"data: "):].decode("utf-8", "strict")
            if data == "[DONE]":
                self.done = True
                continue
            chunk = json.loads(data)
            if "error" in chunk:
                self.error = chunk["error"]
            else:
                self.chunks.append(chunk)

    def choices(self, index=0):
        return [c for chunk in self.chunks for c in chunk["choices"] if c["index"] == index]

    def pieces(self, index=0):
        return [c["delta"].get("content") if "delta" in c else c["text"] for c in self.choices(index)]

    def text(self, index=0):
        return "".join(piece or "" for piece in self.pieces(index))

    def reason(self, index=0):
        """Why a choice ended. Exactly one chunk says it, and it is the choice's last."""
        reasons = [c["finish_reason"] for c in self.choices(index)]
        assert reasons and reasons[-1] is not None and set(reasons[:-1]) <= {None}, reasons
        return reasons[-1]

    def usage(self):
        """The usage chunk: the only one, and the last."""
        found = [chunk for chunk in self.chunks if chunk.get("usage")]
        assert len(found) == 1 and found[0] is self.chunks[-1] and found[0]["choices"] == [], found
        return found[0]["usage"]

    def logprobs(self, index=0):
        """The entries of all chunks, joined: of chats the content, of completions the lists by name."""
        parts = [c["logprobs"] for c in self.choices(index) if c["logprobs"]]
        if all("content" in part for part in parts):
            return [entry for part in parts for entry in part["content"]]
        return {name: [item for part in parts for item in part[name]] for name in parts[0]}


def stream(server, path, body, timeout=60):
    """A stream that must end well."""
    reply = post(server, path, body | {"stream": True}, timeout=timeout)
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"].startswith("text/event-stream")
    events = Stream(reply.content)
    assert events.done and events.error is None, events.error
    return events


def both_ways(server, path, body):
    """The same request without and with stream; their texts, ends and usage must agree. The stream is returned too."""
    whole = good(post(server, path, body))
    parts = stream(server, path, body | {"stream_options": {"include_usage": True}})
    for choice in range(len(whole["choices"])):
        assert parts.text(choice) == text(whole, choice)
        assert parts.reason(choice) == reason(whole, choice)
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert parts.usage()[name] == whole["usage"][name], name
    return whole, parts


@contextlib.contextmanager
def open_stream(server, path, body):
    """Yields the lines of a stream that is left before its end."""
    request = HTTP.stream("POST", server.url + path, json=body | {"stream": True})
    with request as reply:
        assert reply.status_code == 200, reply.read()
        yield (line for line in reply.iter_lines() if line.startswith("data: "))


def background(function, *arguments):
    """Runs a call in a thread; `.result()` gives what it returned or raises what it raised."""
    import concurrent.futures

    future = concurrent.futures.Future()

    def run():
        try:
            future.set_result(function(*arguments))
        except BaseException as error:  # noqa: BLE001, handed to whoever waits
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


class RawReply:
    def __init__(self, version, status, headers, body):
        self.version, self.status_code, self.headers, self.content = version, status, headers, body
        self.text = body.decode(errors="replace")


class Raw:
    """A connection that sends bytes as they are given and reads replies strictly."""

    def __init__(self, server, timeout=20, host="127.0.0.1", receive_buffer=None):
        self.socket = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(timeout)
        self.socket.connect((host, server.port))
        self.input = b""

    def send(self, data):
        self.socket.sendall(data)
        return self

    def fill(self):
        data = self.socket.recv(65536)
        self.input += data
        return bool(data)

    def take_line(self):
        while b"\r\n" not in self.input:
            assert self.fill(), f"the connection ended inside {self.input!r}"
        line, self.input = self.input.split(b"\r\n", 1)
        return line

    def take(self, count):
        while len(self.input) < count:
            assert self.fill(), "the connection ended inside a body"
        data, self.input = self.input[:count], self.input[count:]
        return data

    def head(self):
        version, status, _ = self.take_line().decode("ascii").split(" ", 2)
        headers = {}
        while line := self.take_line():
            name, value = line.decode("latin-1").split(":", 1)
            assert name.lower() not in headers, f"two headers {name}"
            headers[name.lower()] = value.strip()
        return version, int(status), headers

    def reply(self, method="POST"):
        """The next final reply; interim ones are read over."""
        version, status, headers = self.head()
        while status == 100:
            version, status, headers = self.head()
        body = b""
        if method == "HEAD" or status == 204:
            pass
        elif headers.get("transfer-encoding") == "chunked":
            while size := int(self.take_line(), 16):
                body += self.take(size)
                assert self.take(2) == b"\r\n"
            assert self.take_line() == b""
        elif "content-length" in headers:
            body = self.take(int(headers["content-length"]))
        else:
            body = self.rest()
        return RawReply(version, status, headers, body)

    def rest(self):
        """Everything up to the server's end of the connection, which must come."""
        with contextlib.suppress(ConnectionResetError):
            while self.fill():
                pass
        data, self.input = self.input, b""
        return data

    def ended(self):
        """True when the server has closed, and sent nothing more."""
        return self.rest() == b""

    def close(self):
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def request_bytes(path, body=None, method="POST", headers=(), version="1.1", host="localhost"):
    """An HTTP request as bytes; a body (JSON or bytes) brings its Content-Length."""
    content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/{version}"] + ([f"Host: {host}"] if host else [])
    if content is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(content)}"]
    lines += [f"{name}: {value}" for name, value in headers]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + (content or b"")


def http2_settings():
    return base64.urlsafe_b64encode(bytes(18)).decode()


def metric(server, name, **labels):
    """The sum of a metric's series that have these labels. Prefixes are written with ':' or '_'."""
    total, found = 0.0, False
    for line in get(server, "/metrics").text.splitlines():
        if match := re.fullmatch(rf"tandem[:_]{re.escape(name)}(\{{.*\}})? (\S+)", line):
            if all(f'{label}="{value}"' in (match.group(1) or "") for label, value in labels.items()):
                total, found = total + float(match.group(2)), True
    assert found, f"no metric {name} {labels}"
    return total


WORDS = "river stone light market garden engine winter letter mountain paper silver window".split()


def words(seed, count):
    """A text of its own for each seed."""
    draw = random.Random(seed)
    return f"{seed} " + " ".join(draw.choice(WORDS) for _ in range(count))
