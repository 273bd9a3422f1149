"""What the benchmarks of servers share: starting one, streaming a completion from it with the times of its texts, running
several at once, and percentiles. Python standard library only, loopback only."""
import http.client
import json
import random
import shlex
import socket
import subprocess
import threading
import time
import urllib.request

DEADLINE_S = 60
POLL_S = 0.002
WORDS = "time year people way day man thing woman life child world school state family student group country problem".split()


def prompt(tokens):
    """About that many tokens, unique from the first word on: each word is one in the usual vocabularies."""
    return " ".join([f"{random.getrandbits(32):x}"] + random.choices(WORDS, k=tokens - 8))


class Stream:
    """A completion (with `messages` in the body, of a chat) that read() reads as it comes: greedy, to full length and
    outside the prefix cache, unless the body says otherwise."""

    def __init__(self, url, body):
        self.url, self.body = url, {"stream": True, "stream_options": {"include_usage": True}, "temperature": 0,
                                    "ignore_eos": True, "cache_prompt": False, **body}
        self.times, self.text, self.usage, self.whole = [], "", None, False

    def read(self, stop=None):
        """To the end, or until `stop`, an event, is set: then the connection is closed. Raises where it breaks off."""
        path = "/v1/chat/completions" if "messages" in self.body else "/v1/completions"
        data = json.dumps(self.body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        self.sent = time.perf_counter()
        with urllib.request.urlopen(request, timeout=600) as reply:
            for line in reply:
                if stop is not None and stop.is_set():
                    return self
                if line.startswith(b"data: {"):
                    self.take(json.loads(line[6:]))
        self.whole = bool(self.times) and self.usage is not None
        if not self.whole:
            raise RuntimeError(f"a stream from {self.url} broke off")
        return self

    def take(self, event):
        for choice in event.get("choices", []):
            text = choice.get("text") or choice.get("delta", {}).get("content")
            if text:
                self.times.append(time.perf_counter())
                self.text += text
        self.usage = event.get("usage") or self.usage

    @property
    def ttft_s(self):
        return self.times[0] - self.sent

    @property
    def prompt_tokens(self):
        return self.usage["prompt_tokens"]

    @property
    def cached_tokens(self):
        return (self.usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)


def at_once(calls):
    """The results of functions that run in a thread each."""
    results, errors = [None] * len(calls), []

    def run(index):
        try:
            results[index] = calls[index]()
        except Exception as error:  # raised again below, in the caller's thread
            errors.append(error)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


def percentile(values, percent):
    """The least value that so many percent of them do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]


def healthy(port):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


class Server:
    """A server from the start of its process until it is healthy, and to the end of the with block. `command` has {port}
    where the port goes."""

    def __init__(self, command):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        arguments = [part.replace("{port}", str(self.port)) for part in shlex.split(command)]
        self.start = time.perf_counter()
        self.process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while not healthy(self.port):
            if self.process.poll() is not None or time.perf_counter() - self.start > DEADLINE_S:
                self.end()
                raise RuntimeError(f"{arguments[0]} did not become healthy")
            time.sleep(POLL_S)
        self.up = time.perf_counter()

    def end(self):
        self.process.terminate()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()
