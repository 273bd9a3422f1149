"""The official openai client against the HTTP front end over the fake engine. Argument: the fake_server binary."""
import subprocess
import sys
import time

import httpx
import openai

KEY = "secret"
HI = [{"role": "user", "content": "hi"}]


def check(condition, what):
    if not condition:
        raise SystemExit(f"FAILED: {what}")


def expect_status(kind, call, what):
    try:
        call()
    except kind as error:
        return error
    raise SystemExit(f"FAILED: {what}: expected {kind.__name__}")


def chats(client):
    args = dict(model="fake/model", messages=HI, seed=1)
    whole = client.chat.completions.create(n=2, logprobs=True, top_logprobs=2, **args)
    check([c.index for c in whole.choices] == [0, 1], "choice indexes")
    check(whole.choices[0].finish_reason == "stop", "finish reason")
    check(len(whole.choices[0].logprobs.content) == 12, "one logprob entry per token")
    check(all(len(t.top_logprobs) == 2 for t in whole.choices[0].logprobs.content), "alternatives")
    texts, tokens, ends, usage = ["", ""], [0, 0], [0, 0], None
    stream = client.chat.completions.create(n=2, logprobs=True, top_logprobs=2, stream=True,
                                            stream_options={"include_usage": True}, **args)
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            tokens[choice.index] += len(choice.logprobs.content) if choice.logprobs else 0
            ends[choice.index] += choice.finish_reason is not None
    check(texts == [c.message.content for c in whole.choices], "stream equals whole")
    check(tokens == [12, 12] and ends == [1, 1], "stream logprobs and ends")
    check(usage == whole.usage, "usage")
    check("\ufffd" not in "".join(texts), "whole characters")


def completions(client):
    whole = client.completions.create(model="fake/model", prompt=["caf\u00e9:", "b"], seed=1, max_tokens=7, logprobs=2, echo=True)
    check([c.index for c in whole.choices] == [0, 1], "prompt indexes")
    for choice, prompt in zip(whole.choices, ["caf\u00e9:", "b"]):
        check(choice.text.startswith(prompt), "echo")
        lists = choice.logprobs
        check(len(lists.tokens) == len(lists.token_logprobs) == len(lists.top_logprobs) == len(lists.text_offset), "lengths")
        check(lists.token_logprobs[0] is None and all(v <= 0 for v in lists.token_logprobs[1:]), "values")
        for token, offset in zip(lists.tokens, lists.text_offset):
            check("\ufffd" in token or choice.text[offset:].startswith(token), f"offset of {token!r}")
    text = ""
    for chunk in client.completions.create(model="", prompt=[99, 97], seed=1, max_tokens=4, stream=True):
        text += chunk.choices[0].text
    again = client.completions.create(model="", prompt=[99, 97], seed=1, max_tokens=4)
    check(text == again.choices[0].text and again.choices[0].finish_reason == "length", "ids and length")


def errors(client, url):
    expect_status(openai.NotFoundError, lambda: client.chat.completions.create(model="no", messages=HI), "model")
    error = expect_status(openai.BadRequestError,
                          lambda: client.chat.completions.create(model="", messages=HI, temperature=3), "temperature")
    check(error.param == "temperature" and error.code == "decimal_above_max_value", "param and code")
    busy = [{"role": "user", "content": "!refuse=429"}]
    error = expect_status(openai.RateLimitError, lambda: client.chat.completions.create(model="", messages=busy), "busy")
    check(error.response.headers["retry-after"] == "1", "Retry-After")
    broken = [{"role": "user", "content": "!fail=3"}]
    seen = []

    def read():
        for chunk in client.chat.completions.create(model="", messages=broken, stream=True):
            seen.append(chunk)

    expect_status(openai.APIError, read, "failure in a stream")
    check(len(seen) >= 3, "text before the failure")
    other = openai.OpenAI(base_url=url + "/v1", api_key="wrong", max_retries=0)
    expect_status(openai.AuthenticationError, lambda: other.models.list(), "wrong key")


def disconnects(client, url):
    slow = [{"role": "user", "content": "long"}]
    with client.chat.completions.create(model="", messages=slow, stream=True, extra_body={"ignore_eos": True}) as stream:
        next(iter(stream))
    deadline = time.time() + 2
    while time.time() < deadline and "fake_running 0\n" not in httpx.get(url + "/metrics").text:
        time.sleep(0.02)
    check("fake_running 0\n" in httpx.get(url + "/metrics").text, "cancelled after the stream was closed")


def silence(binary):
    """Comment lines between the tokens of a slow stream: the client does not see them."""
    server = subprocess.Popen([binary, "--comment-ms", "100", "--step-us", "500000", "--tokens", "2"],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        url = f"http://127.0.0.1:{server.stdout.readline().split()[1]}/v1"
        client = openai.OpenAI(base_url=url, api_key="none", max_retries=0)
        args = dict(model="fake/model", messages=HI, seed=1)
        text = "".join(c.choices[0].delta.content or "" for c in client.chat.completions.create(stream=True, **args) if c.choices)
        check(text == client.chat.completions.create(**args).choices[0].message.content, "a stream with comment lines")
        raw = httpx.post(url + "/chat/completions", json={**args, "stream": True}, timeout=30).text
        check(": keep-alive\n\n" in raw, "comment lines in a slow stream")
    finally:
        server.stdin.close()
        server.wait()


def main():
    server = subprocess.Popen([sys.argv[1], "--key", KEY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        url = "http://127.0.0.1:" + server.stdout.readline().split()[1]
        client = openai.OpenAI(base_url=url + "/v1", api_key=KEY, max_retries=0, timeout=10)
        check([m.id for m in client.models.list()] == ["fake/model"], "models")
        check(client.models.retrieve("fake/model").id == "fake/model", "model")
        chats(client)
        completions(client)
        errors(client, url)
        disconnects(client, url)
        client.close()
    finally:
        server.stdin.close()
        check(server.wait(timeout=10) == 0, "the server ends cleanly")
    silence(sys.argv[1])
    print("ok")


if __name__ == "__main__":
    main()
