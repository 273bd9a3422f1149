"""HTTP itself: connections, headers, versions, and who may ask."""
import concurrent.futures
import contextlib
import gzip
import json
import time
import zlib

import pytest

from conftest import wait_until

from .client import (CHAT, HTTP, Raw, Stream, alive, chat, get, good, http2_settings, post, refused, request_bytes, text,
                     user)
from .registry import case, reported_body

HI = {"messages": user("hi"), "max_tokens": 2, "temperature": 0}
KEY = "right-key"


@pytest.fixture(scope="module")
def guarded(servers):
    """A server with a key and two origins of pages."""
    origins = ("--cors-allow-origins", "http://app.example", "--cors-allow-origins", "http://other.example")
    return servers("--api-keys", KEY, *origins)


@case("BC-097")
def test_the_body_of_a_refused_request_is_not_the_next_request(guarded):
    body = json.dumps(HI | {"padding": "x" * 2048}).encode()
    right = ("Authorization", f"Bearer {KEY}")
    for path, key, status in ((CHAT, "wrong", 401), ("/v1/nowhere", KEY, 404), ("/v1/models", KEY, 405)):
        with Raw(guarded) as connection:
            connection.send(request_bytes(path, body, headers=[("Authorization", f"Bearer {key}")]))
            first = connection.reply()
            assert first.status_code == status
            if first.headers.get("connection") == "close":
                assert connection.ended()
                continue
            connection.send(request_bytes(CHAT, HI, headers=[right]))
            assert connection.reply().status_code == 200, path
            connection.send(request_bytes("/v1/models", method="GET", headers=[right]))
            assert connection.reply().status_code == 200


@case("BC-098")
def test_pipelined_requests_without_bodies(server):
    wanted = [("GET", "/v1/models", None, 200), ("DELETE", "/v1/models", None, 405), ("GET", "/v1/models", None, 200),
              ("POST", CHAT, HI, 200), ("GET", "/health", None, 200)]
    with Raw(server) as connection:
        connection.send(b"".join(request_bytes(path, body, method) for method, path, body, _ in wanted))
        for method, path, _, status in wanted:
            reply = connection.reply()
            assert reply.status_code == status, (method, path)
            if status == 405:
                assert "GET" in reply.headers["allow"]
        connection.send(request_bytes("/health", method="GET"))
        assert connection.reply().status_code == 200


@case("BC-100")
def test_an_announced_body_is_asked_for(server):
    body = json.dumps(HI | {"messages": user("hello " * 400)}).encode()
    expect = ("Expect", "100-continue")
    head = request_bytes(CHAT, body, headers=[expect])[:-len(body)]
    with Raw(server) as connection:
        assert connection.send(head).head()[1] == 100, "before a byte of the body is sent"
        assert connection.send(body).head()[1] == 200
    with Raw(server) as connection:
        connection.send(request_bytes(CHAT, body, headers=[expect], version="1.0"))
        assert connection.head()[1] == 200, "HTTP/1.0 knows no interim replies"
    with Raw(server) as connection:
        connection.send(request_bytes(CHAT, HI, headers=[("Expect", "a-miracle")]))
        assert connection.reply().status_code in (200, 417)
    alive(server)


@case("BC-101")
def test_a_refusal_does_not_wait_for_the_announced_body(guarded):
    headers = [("Expect", "100-continue"), ("Authorization", "Bearer wrong"), ("Content-Type", "application/json"),
               ("Content-Length", str(2 << 20))]
    with Raw(guarded) as connection:
        connection.send(request_bytes(CHAT, headers=headers))
        version, status, fields = connection.head()
        assert status == 401, "and no 100 before it"
        connection.take(int(fields["content-length"]))
        if fields["connection"] == "close":
            assert connection.ended()
        else:
            connection.send(b"x" * (2 << 20)).send(request_bytes("/health", method="GET"))
            assert connection.reply().status_code == 200
    with Raw(guarded) as connection:  # one that sends it all the same is not reset before it can read the reply
        connection.send(request_bytes(CHAT, b"x" * (2 << 20), headers=headers[:2]))
        assert connection.reply().status_code == 401


@case("BC-103")
def test_odd_request_ids_multiply_nothing(server):
    long_id = "a" * 100_000
    reply = post(server, CHAT, HI, headers={"X-Request-Id": long_id})
    assert reply.status_code in (200, 400, 431) and len(reply.headers["x-request-id"]) <= 1024
    body = reported_body("BC-103", messages=user("count"))
    for length in (1000, 30_000):
        reply = post(server, CHAT, body, headers={"X-Request-Id": "a" * length})
        assert reply.status_code in (200, 400, 431) and reply.content.count(b"a" * 1000) == 0
    raw_ids = [b"a\r\nSet-Cookie: x=1", b"a\rb", b"\xff\xfe\xe9", b"", b"a\x00b", b"a b"]
    for raw in raw_ids:
        with Raw(server) as connection:
            request = request_bytes("/health", method="GET", headers=[("X-Request-Id", "MARK")])
            reply = connection.send(request.replace(b"MARK", raw)).reply()
            assert reply.status_code in (200, 400), raw
            assert "set-cookie" not in reply.headers, raw
    kept = get(server, "/health", headers={"X-Request-Id": "good-id-1"})
    assert kept.headers["x-request-id"] == "good-id-1"
    many = [(f"X-Header-{n}", "v") for n in range(300)]
    for headers in (many, [("X-Long", "v" * 65536)]):
        with Raw(server) as connection:
            connection.send(request_bytes("/health", method="GET", headers=headers))
            assert connection.reply().status_code in (200, 400, 431)
    alive(server)


@case("BC-104")
def test_equal_request_ids_are_different_requests(server):
    body = reported_body("BC-104", max_tokens=50, ignore_eos=True)
    same = {"X-Request-Id": "same"}
    alone = text(chat(server, body))
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        sent = [pool.submit(post, server, CHAT, body, same) for _ in range(3)]
        with HTTP.stream("POST", server.url + CHAT, json=body | {"stream": True}, headers=same) as cancelled:
            lines = cancelled.iter_lines()
            assert next(lines).startswith("data: ")
        again = post(server, CHAT, body, same)
        replies = [good(reply.result()) for reply in sent] + [good(again)]
    assert [text(reply) for reply in replies] == [alone] * 4
    assert len({reply["id"] for reply in replies}) == 4
    wait_until(server.idle, what="an idle server")


@case("BC-106")
def test_which_routes_want_a_key(guarded):
    """As src/api/http_routes.cpp has it: probes and scrapers need none, everything else does."""
    right = {"Authorization": f"Bearer {KEY}"}
    wrong = [{}] + [{"Authorization": value} for value in (
        "Bearer wrong", f"Bearer {KEY}x", f"Bearer {KEY[:-1]}", f"Basic {KEY}", KEY, "Bearer", f"Bearer {KEY} {KEY}",
        f"Bearer {KEY.upper()}")]
    for path in ("/health", "/metrics", "/ready"):
        for headers in [right, *wrong]:
            assert get(guarded, path, headers=headers).status_code == 200, (path, headers)
    for headers in wrong:
        for reply in (get(guarded, "/v1/models", headers=headers), post(guarded, CHAT, HI, headers=headers),
                      post(guarded, "/v1/completions", {"prompt": "a"}, headers=headers),
                      post(guarded, "/tokenize", {"prompt": "a"}, headers=headers),
                      post(guarded, "/flush_cache", {}, headers=headers)):
            refused(reply, status=401)
            assert "bearer" in reply.headers["www-authenticate"].lower(), headers
    for scheme in ("Bearer", "bearer", "BEARER"):
        for value in (f"{scheme} {KEY}", f"{scheme}   {KEY}", f" {scheme} {KEY} "):
            with Raw(guarded) as connection:
                connection.send(request_bytes("/v1/models", method="GET", headers=[("Authorization", value)]))
                assert connection.reply().status_code == 200, value


@case("BC-107")
def test_streams_pass_proxies(server):
    body = reported_body("BC-107", max_tokens=200, ignore_eos=True)
    with Raw(server) as connection:
        connection.send(request_bytes(CHAT, body))
        _, status, headers = connection.head()
        assert status == 200 and headers["content-type"].startswith("text/event-stream")
        assert "no-cache" in headers["cache-control"] and headers["x-accel-buffering"] == "no"
        assert "content-encoding" not in headers and headers["transfer-encoding"] == "chunked"
        size = int(connection.take_line(), 16)
        first = connection.take(size)
        assert first.startswith(b"data: ") and first.endswith(b"\n\n") and b"[DONE]" not in first + connection.input
        raw = connection.rest() if headers["connection"] == "close" else b""
        while not raw and b"[DONE]\n\n" not in connection.input:
            assert connection.fill()


@case("BC-110")
def test_forwarding_headers_of_any_kind(server):
    for value in ("", ",", " , ,", "," * 10_000, "a" * 30_000, "999.999.999.999", "[::1", "127.0.0.1, , 10.0.0.1"):
        with Raw(server) as connection:
            headers = [("X-Forwarded-For", value), ("X-Forwarded-For", value[:100]), ("Forwarded", f"for={value[:50]}")]
            assert connection.send(request_bytes("/health", method="GET", headers=headers)).reply("GET").status_code == 200
    alive(server)


@case("BC-151")
def test_a_browser_may_send_what_clients_add(guarded):
    asked = "authorization,content-type,x-stainless-os,x-stainless-lang,x-request-id"
    preflight = {"Origin": "http://app.example", "Access-Control-Request-Method": "POST",
                 "Access-Control-Request-Headers": asked}
    for path in (CHAT, "/v1/models"):
        reply = HTTP.options(guarded.url + path, headers=preflight)
        assert reply.status_code in (200, 204)
        assert reply.headers["access-control-allow-origin"] == "http://app.example"
        allowed = {name.strip().lower() for name in reply.headers["access-control-allow-headers"].split(",")}
        assert set(asked.split(",")) <= allowed
        assert "POST" in reply.headers["access-control-allow-methods"]
    real = post(guarded, CHAT, HI, headers={"Origin": "http://app.example", "Authorization": f"Bearer {KEY}"})
    assert "x-request-id" in real.headers["access-control-expose-headers"].lower() and real.headers["x-request-id"]
    stranger = HTTP.options(guarded.url + CHAT, headers=preflight | {"Origin": "http://evil.example"})
    assert "access-control-allow-origin" not in stranger.headers


@case("BC-152")
def test_credentials_never_go_with_any_origin(guarded, servers):
    for server, echoed in ((guarded, True), (servers("--cors-allow-origins", "*"), False)):
        for origin in ("http://app.example", "null", "http://evil.example"):
            reply = post(server, CHAT, HI, headers={"Origin": origin, "Authorization": f"Bearer {KEY}"})
            assert reply.status_code == 200
            allowed = reply.headers.get("access-control-allow-origin")
            assert not (allowed == "*" and reply.headers.get("access-control-allow-credentials") == "true")
            assert allowed != "null"
            if echoed:
                assert allowed == ("http://app.example" if origin == "http://app.example" else None)
                assert "origin" in reply.headers.get("vary", "").lower()
            else:
                assert allowed == "*"


@case("BC-164")
def test_an_offer_of_http2_is_passed_over(server):
    upgrade = [("Connection", "Upgrade, HTTP2-Settings"), ("Upgrade", "h2c"), ("HTTP2-Settings", http2_settings())]
    chunked = json.dumps(HI).encode()
    chunked = b"%x\r\n%s\r\n0\r\n\r\n" % (len(chunked), chunked)
    head = request_bytes(CHAT, headers=[*upgrade, ("Content-Type", "application/json"), ("Transfer-Encoding", "chunked")])
    for request in (request_bytes(CHAT, HI, headers=upgrade), head + chunked):
        with Raw(server) as connection:
            reply = connection.send(request).reply()
            assert (reply.version, reply.status_code) == ("HTTP/1.1", 200) and text(json.loads(reply.content))
            assert connection.send(request_bytes("/health", method="GET")).reply().status_code == 200
    websocket = [("Connection", "Upgrade"), ("Upgrade", "websocket"), ("Sec-WebSocket-Key", "x" * 24)]
    with Raw(server) as connection:
        connection.send(request_bytes("/health", method="GET", headers=websocket))
        assert connection.reply().status_code in (200, 400, 426)
    hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64)  # of TLS
    for garbage in (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9), hello):
        with Raw(server) as connection:
            assert connection.send(garbage).head()[1] == 400
            connection.rest()
    alive(server)


@case("BC-166")
def test_compressed_bodies_are_unpacked_or_refused_by_name(server):
    plain = json.dumps(HI).encode()
    expected = text(chat(server, HI))
    bomb = gzip.compress(b'{"messages":"' + b" " * (64 << 20) + b'"}', 1)
    packed = {"gzip": gzip.compress(plain), "deflate": zlib.compress(plain), "br": b"\x8b\x02\x80" + plain, "zstd": plain,
              "gzip, gzip": gzip.compress(gzip.compress(plain))}
    for coding, body in [*packed.items(), ("gzip", bomb)]:
        reply = post(server, CHAT, body, headers={"Content-Encoding": coding})
        if reply.status_code == 200:
            assert text(good(reply)) == expected and body is not bomb
        else:
            assert reply.status_code == 415 or (body is bomb and reply.status_code == 413), (coding, reply.text)
            refused(reply, status=reply.status_code)
    assert text(good(post(server, CHAT, plain, headers={"Content-Encoding": "identity"}))) == expected
    alive(server)


@case("BC-169")
def test_http_1_0_and_head(server):
    def ask(method="GET", path="/health", body=None, headers=(), **options):
        connection = Raw(server)
        connection.send(request_bytes(path, body, method, headers, version="1.0", **options))
        return connection, connection.reply(method)

    for options in ({}, {"host": ""}):
        connection, reply = ask(**options)
        assert reply.status_code == 200 and connection.ended()
    keep = [("Connection", "keep-alive")]
    connection, reply = ask(headers=keep)
    assert reply.status_code == 200 and int(reply.headers["content-length"]) == len(reply.content)
    assert reply.headers["connection"].lower() == "keep-alive"
    assert connection.send(request_bytes("/health", method="GET")).reply().status_code == 200
    connection, reply = ask("POST", CHAT, HI)
    assert reply.status_code == 200 and json.loads(reply.content) and connection.ended()
    for headers in ((), keep):
        connection, reply = ask("POST", CHAT, HI | {"stream": True}, headers)
        assert "transfer-encoding" not in reply.headers and reply.content.endswith(b"data: [DONE]\n\n")
        assert reply.content.startswith(b"data: ") and connection.ended()
    with Raw(server) as connection:  # HTTP/0.9: any short answer, but no hang
        connection.send(b"GET /health\r\n\r\n").rest()
    with Raw(server) as connection:
        assert connection.send(request_bytes("/health", method="GET", host="")).reply().status_code == 400
    for path in ("/health", "/ready", "/metrics", "/v1/models", "/version", "/v1/nowhere"):
        with Raw(server) as connection:
            whole = connection.send(request_bytes(path, method="GET")).reply()
            head = connection.send(request_bytes(path, method="HEAD")).reply("HEAD")
            assert head.status_code == whole.status_code and int(head.headers["content-length"]) > 0
            if path not in ("/metrics", "/v1/nowhere"):  # whose bodies are not the same twice
                assert head.headers["content-length"] == whole.headers["content-length"]
            assert connection.send(request_bytes("/health", method="GET")).reply().status_code == 200


SMUGGLED = request_bytes("/v1/models", method="GET")


def framed(*headers, body=b"", version="1.1"):
    lines = [f"POST {CHAT} HTTP/{version}", "Host: localhost", "Content-Type: application/json", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@case("BC-170")
def test_ambiguous_bodies_are_refused_and_the_connection_closed(server):
    chunked, zero, plain = "Transfer-Encoding: chunked", b"0\r\n\r\n", json.dumps(HI).encode()
    data = b"%x\r\n%s\r\n0\r\n\r\n" % (len(plain), plain)
    ambiguous = {
        "length, coding": framed(f"Content-Length: {len(plain)}", chunked, body=data),
        "coding, length": framed(chunked, f"Content-Length: {len(plain)}", body=data),
        "short length": framed(chunked, "Content-Length: 4", body=data),
        "two lengths": framed(f"Content-Length: {len(plain)}", "Content-Length: 5", body=plain),
        "list of lengths": framed(f"Content-Length: {len(plain)}, 5", body=plain),
        "signed length": framed(f"Content-Length: +{len(plain)}", body=plain),
        "negative length": framed("Content-Length: -1", body=plain),
        "hex length": framed(f"Content-Length: 0x{len(plain):x}", body=plain),
        "two codings": framed(chunked, "Transfer-Encoding: identity", body=data),
        "chunked twice": framed("Transfer-Encoding: chunked, chunked", body=data),
        "unknown coding": framed("Transfer-Encoding: xchunked", body=data),
        "gzip, chunked": framed("Transfer-Encoding: gzip, chunked", body=data),
        "blank before colon": framed("Transfer-Encoding : chunked", body=data),
        "folded": framed("Transfer-Encoding:\r\n chunked", body=data),
        "size 0x": framed(chunked, body=b"0x" + data),
        "size too large": framed(chunked, body=b"fffffffffffffffff\r\n" + plain + b"\r\n" + zero),
        "negative size": framed(chunked, body=b"-5\r\nhello\r\n" + zero),
        "size with bare LF": framed(chunked, body=data.replace(b"\r\n", b"\n", 1)),
        "data past its chunk": framed(chunked, body=b"5\r\n" + plain + b"\r\n" + zero),
    }
    for what, request in ambiguous.items():
        with Raw(server) as connection:
            reply = connection.send(request + SMUGGLED).reply()
            assert reply.status_code == 400, what
            assert connection.ended(), f"{what}: something after the refusal was answered"
    with Raw(server) as connection:
        connection.send(framed(chunked, body=data, version="1.0") + SMUGGLED)
        assert connection.reply().status_code in (200, 400) and connection.ended()
    alive(server)


@case("BC-170")
def test_good_chunked_bodies_are_read(server):
    chunked, plain = "Transfer-Encoding: chunked", json.dumps(HI).encode()
    size = b"%x" % len(plain)
    for body in (size + b";name=value\r\n" + plain + b"\r\n0\r\n\r\n",
                 size.upper() + b"\r\n" + plain + b"\r\n0\r\nTrailer: x\r\n\r\n",
                 b"".join(b"1\r\n%c\r\n" % byte for byte in plain) + b"0\r\n\r\n",
                 b"000" + size + b"\r\n" + plain + b"\r\n00\r\n\r\n"):
        with Raw(server) as connection:
            assert connection.send(framed(chunked, body=body)).reply().status_code == 200, body[:40]
            assert connection.send(SMUGGLED).reply().status_code == 200


@case("BC-158", slow=True)
def test_a_waiting_stream_is_never_silent(servers):
    """One running place, taken by long streams; who waits must hear something every 15 s, and nothing of it later."""
    server = servers("--max-running-sequences", "1")
    long = request_bytes(CHAT, HI | {"max_tokens": 8000, "ignore_eos": True})
    with contextlib.ExitStack() as stack:
        ahead = [stack.enter_context(Raw(server)).send(long) for _ in range(4)]
        connection = stack.enter_context(Raw(server, timeout=40))
        time.sleep(0.2)
        connection.send(request_bytes(CHAT, HI | {"max_tokens": 3, "stream": True}, headers=[("Connection", "close")]))
        heard = started = time.monotonic()
        while time.monotonic() - started < 34:
            assert connection.fill(), "the stream ended"
            assert time.monotonic() - heard < 17, "silence"
            heard = time.monotonic()
        assert b"\n:" in connection.input and b'"content":"H' not in connection.input
        for each in ahead:
            each.close()
        body = connection.reply().content
    events = Stream(body)
    assert events.done and events.comments >= 1 and events.text() == text(chat(server, HI | {"max_tokens": 3}))
    first = body.index(b'data: {', body.index(b'"role":"assistant"'))
    assert b"\n:" not in body[first:], "no comment once tokens flow"
