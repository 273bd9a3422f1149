"""What /metrics counts: every request once, by how it ended, and its tokens as its usage says."""
import re
import socket

import httpx
import pytest

from conftest import Server, wait_until

POOL = ("--kv-cache-tokens", "16384")
COUNTERS = ("tandem_requests_accepted_total", "tandem_requests_refused_total", "tandem_prompt_tokens_total",
            "tandem_generation_tokens_total")


@pytest.fixture(scope="module")
def counted():
    with Server(*POOL, grpc=True) as running:
        yield running


def scrape(server):
    return httpx.get(server.url + "/metrics", timeout=10).text


def counts(server):
    """Each counter's value, and how many requests ended for each reason."""
    text = scrape(server)
    found = {name: float(re.search(rf"^{name} (\S+)$", text, re.M).group(1)) for name in COUNTERS}
    for reason, value in re.findall(r'^tandem_requests_finished_total\{reason="(\w+)"\} (\S+)$', text, re.M):
        found[reason] = float(value)
    return found


def cut_after(server, size):
    """A stream whose client leaves after so many bytes of its body."""
    body = '{"prompt": "Count: one, two,", "max_tokens": 2000, "ignore_eos": true, "stream": true}'
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as client:
        client.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n"
                       f"Content-Length: {len(body)}\r\n\r\n{body}".encode())
        read = b""
        while len(read.partition(b"\r\n\r\n")[2]) < size:
            read += client.recv(size)


def test_each_request_counts_once_by_how_it_ended(counted):
    def ask(**fields):
        return counted.post("/v1/completions", {"prompt": "One two three", **fields})

    before = counts(counted)
    usages = []
    for _ in range(5):
        cut_after(counted, 64)
        assert ask(temperature=-3).status_code == 400  # the front end's check
        stopped = ask(max_tokens=200, stop=[" ", ",", "\n", "."]).json()
        assert stopped["choices"][0]["finish_reason"] == "stop"
        cut = ask(max_tokens=3, n=2, ignore_eos=True).json()  # a request, whatever its choices
        assert [choice["finish_reason"] for choice in cut["choices"]] == ["length"] * 2
        usages += [stopped["usage"], cut["usage"]]
    assert counted.post("/v1/completions", {"prompt": [1] * 9000}).status_code == 400  # the engine's check
    wait_until(lambda: counts(counted)["cancelled"] - before["cancelled"] == 5, what="the end of the streams")
    rose = {name: value - before[name] for name, value in counts(counted).items()}
    assert {name: rose[name] for name in ("stop", "length", "cancelled", "failed")} == \
        {"stop": 5, "length": 5, "cancelled": 5, "failed": 0}
    assert rose["tandem_requests_accepted_total"] == 15 and rose["tandem_requests_refused_total"] == 6
    prompts = sum(usage["prompt_tokens"] for usage in usages)
    cut_prompt = len(counted.post("/tokenize", {"prompt": "Count: one, two,"}).json()["tokens"])
    assert rose["tandem_prompt_tokens_total"] == prompts + 5 * cut_prompt
    generated = sum(usage["completion_tokens"] for usage in usages)
    assert generated < rose["tandem_generation_tokens_total"] < generated + 5 * 2000, "and what the cut ones had"


def test_sums_and_counters_agree(counted):
    counted.post("/v1/completions", {"prompt": "Hello", "max_tokens": 5})
    text = scrape(counted)

    def value(name):
        return float(re.search(rf"^{name} (\S+)$", text, re.M).group(1))

    assert value("tandem_request_prompt_tokens_sum") == value("tandem_prompt_tokens_total")
    assert value("tandem_request_generation_tokens_sum") == value("tandem_generation_tokens_total")
    finished = sum(float(v) for v in re.findall(r"^tandem_requests_finished_total\{.*\} (\S+)$", text, re.M))
    assert finished == value("tandem_requests_accepted_total") == value("tandem_e2e_request_latency_seconds_count")


def test_every_series_has_the_prefix_a_help_text_and_round_bounds(counted):
    text = scrape(counted)
    names = set(re.findall(r"^# TYPE (\S+)", text, re.M))
    assert len(names) > 20 and all(re.fullmatch(r"tandem_[a-z0-9_]+", name) for name in names), names
    for name in names:
        assert re.search(rf"^# HELP {name} \S.{{8,}}", text, re.M), name
    assert len(names) == len(re.findall(r"^# TYPE", text, re.M)), "one writer"
    bounds = set(re.findall(r'le="([^"]+)"', text)) - {"+Inf"}
    assert bounds and all(re.fullmatch(r"0\.0*[125]|[125]0*|[125]e\+0\d", bound) for bound in bounds), bounds
