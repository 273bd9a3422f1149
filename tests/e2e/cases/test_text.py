"""Characters, tokens and ends of turns: what of the model's output reaches the client, and in which pieces.

Where a report forces a text by a schema, a model is used here whose output is a script (models.scripted_model)."""
import concurrent.futures
import json

import pytest

from .client import CHAT, COMPLETE, alive, both_ways, chat, complete, good, post, reason, refused, stream, text, user
from .models import CHATML, END, END_OF_TURN, TURN, scripted_model, tiny_model, written
from .registry import case, reported_body

COPY = {"messages": user("Copy the text."), "temperature": 0}


def split(*parts):
    """Each text with the lengths of its tokens in bytes: ("🫠", 2, 2) is two tokens of two bytes."""
    pieces = []
    for characters, *lengths in parts:
        data = characters.encode()
        assert sum(lengths) == len(data)
        for length in lengths:
            pieces.append(data[:length])
            data = data[length:]
    return pieces


@pytest.fixture(scope="module")
def say(servers, tmp_path_factory):
    """A server whose model answers with a script: a name and pieces."""
    def start(name, pieces, **options):
        return servers(model=scripted_model(tmp_path_factory.getbasetemp() / f"scripts/{name}", pieces, **options))

    return start


# Four bytes as 1 + 3, 2 + 2 and 3 + 1; a token that ends one character and begins the next; marks that combine.
MIXED = "🫠🥹龜𠮷กำשׁ"
MIXED_PIECES = split(("🫠", 1, 3), ("🥹", 2, 2), ("龜𠮷ก", 2, 3, 1, 1, 1, 2), ("ำ", 3), ("שׁ", 3, 1))


@case("BC-001")
def test_characters_of_several_tokens_are_whole_in_the_stream(say):
    body = COPY | {"max_tokens": 96}
    whole, parts = both_ways(say("mixed", MIXED_PIECES), CHAT, body)
    assert text(whole) == MIXED
    assert all("\N{REPLACEMENT CHARACTER}" not in (piece or "") for piece in parts.pieces())
    assert whole["usage"]["completion_tokens"] == len(MIXED_PIECES) + 1


@case("BC-002")
def test_a_limit_inside_a_character_ends_the_reply_cleanly(say):
    pieces = split(("🫠", 1, 3), ("🫡", 3, 1), ("🥹", 2, 2))
    server = say("cut", pieces)
    for limit in range(1, 10):
        whole, _ = both_ways(server, CHAT, COPY | {"max_tokens": limit})
        assert reason(whole) == ("length" if limit <= len(pieces) else "stop")
        shown = b"".join(pieces[:limit]).decode(errors="ignore")
        assert text(whole) in (shown, shown + "\N{REPLACEMENT CHARACTER}")
        assert whole["usage"]["completion_tokens"] == min(limit, len(pieces) + 1)
    alive(server)


@case("BC-004")
def test_batched_streams_have_whole_characters(say):
    server = say("mixed", MIXED_PIECES)
    alone = chat(server, COPY | {"max_tokens": 80})
    assert text(alone) == MIXED
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for limit in (80, 4):  # 4 tokens end inside the third character: what is held back is flushed alike
            expected = text(chat(server, COPY | {"max_tokens": limit}))
            for one in [pool.submit(stream, server, CHAT, COPY | {"max_tokens": limit}) for _ in range(8)]:
                assert one.result().text() == expected


@case("BC-005")
def test_a_stop_list_makes_no_empty_deltas(server):
    body = reported_body("BC-005")
    events = stream(server, CHAT, body)
    first, *middle, last = events.choices()
    assert first["delta"]["role"] == "assistant" and last["finish_reason"]
    assert all(piece["delta"].get("content") for piece in middle), middle
    assert len(middle) > 10
    del body["stop"], body["stream"]
    assert events.text() == text(chat(server, body)) != ""


@case("BC-007")
def test_invalid_utf8_is_refused_without_repeating_it(server):
    bad = b"\xff\xfe\x80"
    for raw in (b'{"messages":"' + bad + b'"}',
                b'{"model":"' + bad + b'","messages":[{"role":"user","content":"x"}]}',
                b'{"messages":[{"role":"' + bad + b'","content":"x"}]}'):
        refused(post(server, CHAT, raw))  # decodes the body strictly
    alive(server)


@case("BC-008")
def test_an_unpaired_surrogate_is_read_the_same_way_everywhere(server):
    message = r'"messages":[{"role":"user","content":"a\uD800b"}]'
    tool = r'"messages":[{"role":"user","content":"x"}],"tools":[{"type":"function","function":{"name":"a\uD800b"}}]'
    stop = r'"messages":[{"role":"user","content":"x"}],"stop":["a\uD800b"]'
    for fields in (message, tool, stop):
        replies = [post(server, CHAT, f'{{"max_tokens":4,{fields}{more}}}'.encode()) for more in ("", ',"stream":true')]
        assert replies[0].status_code == replies[1].status_code
        if replies[0].status_code == 200:
            assert fields != tool, "a tool with such a name"
            continue
        for reply in replies:
            refused(reply)
    alive(server)


LLAMA3_PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
                  r"|\s*[\r\n]+|\s+(?!\S)|\s+")
ODD = "a\u2029b\u00a0c\u3000d\u0085e \ua3e4 \U0001F468\u200d\U0001F469\u200d\U0001F467 \u0301\u00e9e\u0301 \u06f1\u06f2\u06f3"
# What the tokenizers library (0.23.3) makes of ODD with the tokenizer below, split as GPT-2 and as Llama 3 does.
REFERENCE_IDS = {
    "gpt2": [100, 260, 172, 101, 264, 102, 267, 131, 103, 271, 104, 274, 276, 278, 280, 171, 260, 144, 279, 285, 260, 144,
             279, 287, 289, 132, 292, 104, 290, 296, 298, 300, 182],
    "llama3": [100, 260, 262, 264, 102, 267, 269, 271, 104, 274, 276, 278, 280, 171, 260, 144, 279, 285, 260, 144, 279, 287,
               289, 132, 292, 104, 290, 35, 297, 299, 301],
}


def merge_all_neighbours(llama3):
    """Every two neighbouring bytes of ODD are a merge, so the ids show each border between the pieces."""
    def change(tokenizer):
        letters = written(ODD.encode())
        pairs = list(dict.fromkeys(zip(letters, letters[1:])))
        vocabulary = tokenizer["model"]["vocab"]
        for pair in pairs:
            vocabulary.setdefault("".join(pair), len(vocabulary))
        tokenizer["model"]["merges"] = [" ".join(pair) for pair in pairs]
        if llama3:
            tokenizer["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": LLAMA3_PATTERN}, "behavior": "Isolated", "invert": False},
                {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}]}

    return change


@case("BC-010")
def test_odd_unicode_is_tokenised_as_the_reference_does(servers, tmp_path_factory):
    folder = tmp_path_factory.getbasetemp()
    plain = scripted_model(folder / "neighbours", [b"x"], rows=120)
    for name in ("gpt2", "llama3"):
        server = servers(model=tiny_model(folder / f"neighbours-{name}", source=plain,
                                          tokenizer=merge_all_neighbours(name == "llama3")))
        ids = good(post(server, "/tokenize", {"content": ODD}))["tokens"]
        assert good(post(server, "/detokenize", {"tokens": ids}))["text"] == ODD
        assert ids == REFERENCE_IDS[name], name


@case("BC-011")
def test_one_begin_token_and_no_second(servers, tmp_path_factory):
    def add_begin(tokenizer):
        token = {"SpecialToken": {"id": END, "type_id": 0}}
        tokenizer["post_processor"] = {
            "type": "TemplateProcessing", "single": [token, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {END: {"id": END, "ids": [0], "tokens": [END]}}}

    server = servers(model=tiny_model(tmp_path_factory.getbasetemp() / "bos", tokenizer=add_begin,
                                      template="{{ bos_token }}" + CHATML))
    ids = good(post(server, "/tokenize", {"prompt": "Hi", "add_special_tokens": False}))["tokens"]
    logprobs = {"max_tokens": 1, "temperature": 0}

    def after(reply):
        entry = reply["choices"][0]["logprobs"]
        return entry["content"][0]["logprob"] if "content" in entry else entry["token_logprobs"][0]

    raw = complete(server, logprobs | {"prompt": "Hi", "logprobs": 5})
    spelled = complete(server, logprobs | {"prompt": [0, *ids], "logprobs": 5})
    assert raw["usage"]["prompt_tokens"] == len(ids) + 1 and after(raw) == after(spelled)
    rendered = f"{TURN}user\nHi{END_OF_TURN}\n{TURN}assistant\n"
    begin, *ids = good(post(server, "/tokenize", {"prompt": rendered}))["tokens"]
    assert begin == 0 and [ids.count(control) for control in (0, 1, 2)] == [0, 2, 1]
    reply = chat(server, logprobs | {"messages": user("Hi"), "logprobs": True})
    spelled = complete(server, logprobs | {"prompt": [0, *ids], "logprobs": 5})
    assert reply["usage"]["prompt_tokens"] == len(ids) + 1 and after(reply) == after(spelled)
    doubled = complete(server, logprobs | {"prompt": [0, 0, *ids], "logprobs": 5})
    assert after(doubled) != after(spelled), "the comparison would see a second begin token"


@case("BC-074")
def test_the_ends_of_all_sources_end_a_turn(servers, tmp_path_factory):
    folder = tmp_path_factory.getbasetemp()
    sources = {
        "config": dict(config={"eos_token_id": [2]}, generation_config={"eos_token_id": None}),
        "generation": dict(config={"eos_token_id": 0}, generation_config={"eos_token_id": [0, 2]}),
        "tokenizer": dict(config={"eos_token_id": None}, generation_config={"eos_token_id": None}),
    }
    for name, changes in sources.items():
        scripted_model(folder / f"ends/{name}", [b"h", b"i"])
        model = folder / f"ends-{name}"
        (folder / f"ends/{name}" / "generation_config.json").write_text("{}")

        def rename(tokenizer):
            """No name that a list of well-known end tokens could have."""
            end = next(token for token in tokenizer["added_tokens"] if token["content"] == END_OF_TURN)
            tokenizer["model"]["vocab"]["<fin>"] = tokenizer["model"]["vocab"].pop(END_OF_TURN)
            tokenizer["added_tokens"][tokenizer["added_tokens"].index(end)] = end | {"content": "<fin>"}

        config = {"eos_token": "<fin>" if name == "tokenizer" else None}
        server = servers(model=tiny_model(model, source=folder / f"ends/{name}", tokenizer=rename,
                                          template=CHATML.replace(END_OF_TURN, "<fin>"), tokenizer_config=config, **changes))
        whole, _ = both_ways(server, CHAT, {"messages": user("Say hi."), "temperature": 0, "max_tokens": 200})
        assert (text(whole), reason(whole), whole["usage"]["completion_tokens"]) == ("hi", "stop", 3), name
        shown, _ = both_ways(server, CHAT, {"messages": user("Say hi."), "temperature": 0, "max_tokens": 20,
                                            "ignore_eos": True})
        assert reason(shown) == "length", "the end token does come"


@case("BC-167")
def test_rows_without_a_token_have_no_text(say):
    """Once by the script, greedy and hot; once as ids of a prompt."""
    server = say("padded", [b"a", 300, b"b", 301, b"c"], rows=70)
    for temperature in (0, 2.0):
        body = {"prompt": [5, 6, 7], "max_tokens": 60, "temperature": temperature, "logprobs": 5}
        whole, parts = both_ways(server, COMPLETE, body)
        lists = parts.logprobs()
        assert len(lists["tokens"]) == whole["usage"]["completion_tokens"] and json.dumps(lists)
        if temperature == 0:
            assert text(whole) == "abc" and lists["tokens"][:5] == ["a", "", "b", "", "c"]
    size = 260 + 70 - 1
    reply = post(server, COMPLETE, {"prompt": [5, size, 7], "max_tokens": 1})
    assert reply.status_code == 200 or refused(reply, param="prompt")
    alive(server)
