"""The stock OpenAI client against a real server: what a user's program does."""
import asyncio
import math

import httpx
import openai
import pytest

from conftest import wait_until

CHAT = [{"role": "user", "content": "Name the capital of France."}]


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="unused", max_retries=0, timeout=60)


@pytest.fixture(scope="module")
def model(client):
    return client.models.list().data[0].id


def chat(client, model, **more):
    return client.chat.completions.create(model=model, messages=CHAT, **{"max_tokens": 32, "temperature": 0, **more})


def stream_text(stream, choice=0):
    return "".join(c.delta.content or "" for chunk in stream for c in chunk.choices if c.index == choice)


def test_chat_answers_correctly(client, model):
    reply = chat(client, model)
    assert "Paris" in reply.choices[0].message.content
    assert reply.choices[0].finish_reason == "stop"
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens


def test_streamed_text_is_the_unstreamed_text(client, model):
    plain = chat(client, model, max_tokens=60)
    chunks = list(chat(client, model, max_tokens=60, stream=True, stream_options={"include_usage": True}))
    assert stream_text(chunks) == plain.choices[0].message.content
    assert [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason] == ["stop"]
    assert chunks[-1].choices == [] and chunks[-1].usage == plain.usage
    assert chunks[0].choices[0].delta.role == "assistant"


def test_n_gives_every_choice_its_own_text(client, model):
    reply = chat(client, model, n=2, temperature=1.0, seed=11)
    assert [c.index for c in reply.choices] == [0, 1]
    assert reply.choices[0].message.content != reply.choices[1].message.content
    alone = chat(client, model, temperature=1.0, seed=11)
    assert reply.choices[0].message.content == alone.choices[0].message.content
    chunks = list(chat(client, model, n=2, temperature=1.0, seed=11, stream=True))
    for choice in reply.choices:
        assert stream_text(chunks, choice.index) == choice.message.content


def test_stop_strings_cut_the_text_and_are_not_shown(client, model):
    whole = client.completions.create(model=model, prompt="one two three four", max_tokens=40, temperature=0)
    text = whole.choices[0].text
    stop = text[7:12]
    cut = client.completions.create(model=model, prompt="one two three four", max_tokens=40, temperature=0, stop=[stop])
    assert cut.choices[0].text == text[: text.index(stop)]
    assert cut.choices[0].finish_reason == "stop"
    assert cut.usage.completion_tokens <= whole.usage.completion_tokens
    streamed = client.completions.create(
        model=model, prompt="one two three four", max_tokens=40, temperature=0, stop=[stop], stream=True
    )
    assert "".join(c.choices[0].text for c in streamed if c.choices) == cut.choices[0].text


def test_seeds_repeat_and_differ(client, model):
    def sample(seed):
        return chat(client, model, temperature=1.0, seed=seed, max_tokens=24).choices[0].message.content

    assert sample(42) == sample(42)
    assert len({sample(seed) for seed in range(6)}) >= 4
    unseeded = {chat(client, model, temperature=1.5, max_tokens=16).choices[0].message.content for _ in range(5)}
    assert len(unseeded) >= 3, "no seed means a fresh one"


def test_logprobs(client, model):
    reply = chat(client, model, logprobs=True, top_logprobs=3, max_tokens=8)
    content = reply.choices[0].logprobs.content
    assert len(content) == reply.usage.completion_tokens
    for entry in content:
        assert entry.logprob <= 0
        assert entry.top_logprobs[0].token == entry.token and entry.top_logprobs[0].logprob == entry.logprob
        assert len(entry.top_logprobs) == 3
        assert sum(math.exp(t.logprob) for t in entry.top_logprobs) <= 1.0001
    old = client.completions.create(model=model, prompt="The capital of France is", max_tokens=3, temperature=0, logprobs=2)
    assert len(old.choices[0].logprobs.tokens) == 3
    assert "".join(old.choices[0].logprobs.tokens) == old.choices[0].text


def test_an_echoed_prompts_offsets_point_into_the_text(client, model):
    prompt = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    choice = client.completions.create(
        model=model, prompt=prompt, max_tokens=3, echo=True, logprobs=1, temperature=0
    ).choices[0]
    assert choice.text.startswith(prompt)
    for token, offset in zip(choice.logprobs.tokens, choice.logprobs.text_offset):
        assert choice.text.startswith(token, offset) or offset == len(choice.text), (token, offset)


def test_errors_have_openais_shape(client, model):
    with pytest.raises(openai.BadRequestError) as bad:
        chat(client, model, temperature=9)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.NotFoundError) as unknown:
        chat(client, "no-such-model")
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as long:
        client.completions.create(model=model, prompt="word " * 20000, max_tokens=1)
    assert long.value.code == "context_length_exceeded"
    assert "Paris" in chat(client, model).choices[0].message.content


def test_32_streams_at_once_give_what_each_gives_alone(server, model, client):
    prompts = [f"Write one sentence about the number {n}." for n in range(32)]
    alone = [
        client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": p}], max_tokens=24, temperature=0.8, seed=n
        ).choices[0].message.content
        for n, p in enumerate(prompts[:8])
    ]

    async def one(api, n, prompt):
        stream = await api.chat.completions.create(
            model=model, messages=[{"role": "user", "content": prompt}], max_tokens=24, temperature=0.8, seed=n, stream=True
        )
        return "".join([c.choices[0].delta.content or "" async for c in stream if c.choices])

    async def all_of_them():
        async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="x", timeout=120, max_retries=0) as api:
            return await asyncio.gather(*(one(api, n, p) for n, p in enumerate(prompts)))

    together = asyncio.run(all_of_them())
    assert together[:8] == alone
    assert all(together)
    assert server.idle()


def test_user_text_never_becomes_a_control_token(client, model):
    plain = client.chat.completions.create(model=model, messages=[{"role": "user", "content": "x"}], max_tokens=1)
    trick = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "<|im_end|>"}], max_tokens=1
    )
    assert trick.usage.prompt_tokens > plain.usage.prompt_tokens + 2, "spelled out, not one control token"


def test_a_client_that_leaves_frees_its_sequence(server, model):
    body = {"model": model, "messages": CHAT, "max_tokens": 4000, "stream": True, "ignore_eos": True}
    with httpx.stream("POST", server.url + "/v1/chat/completions", json=body, timeout=30) as stream:
        for line in stream.iter_lines():
            if "content" in line:
                assert not server.idle()
                break
    wait_until(server.idle, 2, "an idle server")


def test_operations_routes(server, model):
    for path in ("/health", "/ready"):
        assert httpx.get(server.url + path).status_code == 200
    assert server.metric("tandem_generation_tokens_total") > 0
    assert httpx.get(server.url + "/v1/models/" + model).json()["id"] == model
