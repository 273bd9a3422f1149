"""Model files that are damaged, odd or contradict themselves: refused in one line, never loaded in part."""
import json
import random
import re
import resource
import shutil
import struct
import subprocess
import time

import numpy as np
import pytest

from conftest import BINARY

from .client import COMPLETE, both_ways, complete, good, post, text
from .models import ARRAY, F32, STRING, TINY, U32, U64, Gguf, tiny_model, tiny_tensors, write_json
from .registry import case

PATIENCE = 15  # seconds for what the reports want in two or five, on a machine that does nothing else


def run(model, *command):
    """Exit status, standard error and resident MiB of a run that must end soon."""
    arguments = [BINARY, *(command or ("serve", "--port", "0")), "--model", str(model)]
    process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    watchdog = time.monotonic() + PATIENCE
    try:
        _, told = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        raise AssertionError(f"it did not end: {process.communicate()[1]}") from None
    assert time.monotonic() < watchdog
    return process.returncode, told


def refusal(model, *names):
    """The line in which a start was refused. It names at least one of `names`."""
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    status, told = run(model)
    assert status > 0, f"{model} was not refused, or by a signal: {status} {told}"
    lines = [line for line in told.splitlines() if " info " not in line]
    assert len(lines) == 1 and len(lines[0]) < 1000, told
    assert not names or any(name in lines[0] for name in names), (names, lines[0])
    grown = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    assert grown <= max(peak, 300 * 1024), f"{grown} KiB for a refusal"
    return lines[0]


def tensor(gguf, **changes):
    """Changes the entry of one tensor: [name, dimensions, type, offset]."""
    entry = next(entry for entry in gguf.tensors if entry[0] == "blk.0.ffn_up.weight")
    for index, name in enumerate(("name", "dimensions", "type", "offset")):
        if name in changes:
            entry[index] = changes[name]


def value(key, kind, content):
    return lambda gguf: gguf.values.update({key: (kind, content)})


def raw_value(key, kind, raw):
    """A value whose bytes are given, as in a damaged file."""
    return lambda gguf: gguf.values.update({key: (kind, raw)})


UP = "blk.0.ffn_up.weight"
DAMAGES = {
    "a dimension of 0": (lambda g: tensor(g, dimensions=[64, 0]), UP),
    "a negative dimension": (lambda g: tensor(g, dimensions=[64, 2**64 - 160]), UP),
    "a dimension of 2^63 - 1": (lambda g: tensor(g, dimensions=[2**63 - 1, 1]), UP),
    "a product that wraps to 0": (lambda g: tensor(g, dimensions=[2**42, 2**22]), UP),
    "no dimensions": (lambda g: tensor(g, dimensions=[]), UP),
    "five dimensions": (lambda g: tensor(g, dimensions=[64, 160, 1, 1, 1]), UP),
    "255 dimensions": (lambda g: tensor(g, dimensions=[1] * 255), UP),
    "no blocks": (value("llama.block_count", U32, 0), "block_count"),
    "no heads": (value("llama.attention.head_count", U32, 0), "head_count"),
    "heads that do not divide": (value("llama.attention.head_count", U32, 3), "head"),
    "an empty key": (value("", U32, 1), "key", '""'),
    "a value of an unknown type": (raw_value("general.odd", 99, b"\0" * 8), "general.odd", "type 99"),
    "an array of 2^60 values": (raw_value("general.odd", ARRAY, struct.pack("<IQ", U32, 2**60)), "general.odd"),
    "a string past the end": (raw_value("general.odd", STRING + 256, b""), "general.odd"),
    "a longer string than the file": (lambda g: setattr(g, "tail", struct.pack("<Q", 2**40)), "general.odd"),
    "an alignment of 0": (value("general.alignment", U32, 0), "alignment"),
    "an alignment of 3": (value("general.alignment", U32, 3), "alignment"),
    "an alignment of 2^31": (value("general.alignment", U32, 2**31), "alignment"),
    "an unknown type of tensor": (lambda g: tensor(g, type=99), UP),
    "two tensors of one name": (lambda g: tensor(g, name="blk.0.ffn_gate.weight"), "blk.0.ffn_gate.weight"),
    "an offset that is not aligned": (lambda g: tensor(g, offset=g.tensors[0][3] + 3), UP),
    "an offset inside another tensor": (lambda g: tensor(g, offset=g.tensors[0][3]), UP, "inside another"),
    "an offset past the end": (lambda g: tensor(g, offset=2**40), UP),
    "version 0": (lambda g: setattr(g, "version", 0), "version"),
    "version 99": (lambda g: setattr(g, "version", 99), "version"),
    "another byte order": (lambda g: setattr(g, "version", 3 << 24), "byte order", "endian", "version"),
    "no GGUF at all": (lambda g: setattr(g, "magic", b"GGML"), "GGUF"),
    "a wrong type of a key": (value("llama.block_count", STRING, "three"), "block_count"),
    "a value of 2^40 blocks": (value("llama.block_count", U64, 2**40), "block_count"),
    "a context of 0": (value("llama.context_length", U32, 0), "context_length"),
    "an epsilon that is no number": (value("llama.attention.layer_norm_rms_epsilon", F32, float("nan")), "epsilon"),
    "a head size of 0": (value("llama.attention.key_length", U32, 0), "key_length"),
    "a token for each of two": (lambda g: g.values["tokenizer.ggml.tokens"][1][1].pop(), "token"),
}


def damaged(name):
    gguf = Gguf()
    DAMAGES[name][0](gguf)
    if name == "a string past the end":  # a known type, and a length that reaches beyond the file
        gguf.values["general.odd"] = (STRING, b"")
        raw = gguf.bytes()
        at = raw.index(b"general.odd") + len("general.odd") + 4
        return raw[:at] + struct.pack("<Q", len(raw)) + raw[at + 8:]
    if name == "a longer string than the file":
        gguf.values["general.odd"] = (STRING, b"")
        raw = gguf.bytes()
        at = raw.index(b"general.odd") + len("general.odd") + 4
        return raw[:at] + struct.pack("<Q", 2**64 - 1) + raw[at + 8:]
    return gguf.bytes()


@case("BC-143")
def test_damaged_gguf_files_are_refused_by_name(tmp_path):
    file = tmp_path / "damaged.gguf"
    for name, (_, *names) in DAMAGES.items():
        file.write_bytes(damaged(name))
        refusal(file, *names)
    file.write_bytes(Gguf().bytes())
    status, told = run(file, "generate", "--prompt", "a", "--max-tokens", "1")
    assert status == 0, f"the file is good before it is damaged: {told}"


def changed_bytes(tmp_path, count, seed):
    good_file = Gguf().bytes()
    draw = random.Random(seed)
    file = tmp_path / "changed.gguf"
    ends = {}
    for n in range(count):
        at, byte = draw.randrange(min(len(good_file), 64 << 10)), draw.randrange(256)
        file.write_bytes(good_file[:at] + bytes([byte]) + good_file[at + 1:])
        status, told = run(file, "generate", "--prompt", "a", "--max-tokens", "1")
        assert status >= 0 and "signal" not in told, f"change {n}: byte {at} is {byte}: {status} {told}"
        ends[status] = ends.get(status, 0) + 1
    return ends


@case("BC-145")
def test_changed_bytes_of_a_gguf_file_end_no_process(tmp_path):
    assert sum(changed_bytes(tmp_path, 12, 145).values()) == 12


@case("BC-145", slow=True)
def test_many_changed_bytes_of_a_gguf_file_end_no_process(tmp_path):
    ends = changed_bytes(tmp_path, 1000, 2000)
    assert len(ends) > 1, f"some are refused, some make no difference: {ends}"


def safetensors(path, change=lambda header, data: (header, data), length=None):
    """A copy of the tiny model's weights with its header (an object) and data changed; a header may also be bytes."""
    raw = (TINY / "model.safetensors").read_bytes()
    (size,) = struct.unpack("<Q", raw[:8])
    header, data = change(json.loads(raw[8:8 + size]), raw[8 + size:])
    content = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(content) if length is None else length) + content + data)


NORM = "model.norm.weight"


def entry(**changes):
    def change(header, data):
        header[NORM] |= changes
        return header, data

    return change


def moved(by):
    def change(header, data):
        begin, end = header[NORM]["data_offsets"]
        header[NORM]["data_offsets"] = [begin + by, end + by]
        return header, data

    return change


def with_hole(header, data):
    for each in header.values():
        if "data_offsets" in each:
            each["data_offsets"] = [offset + 64 for offset in each["data_offsets"]]
    return header, bytes(64) + data


def without_norm(header, data):
    del header[NORM]
    return header, data


@case("BC-146")
def test_damaged_safetensors_are_refused_with_file_and_tensor(tmp_path):
    model = tmp_path / "model"
    tiny_model(model)
    file = model / "model.safetensors"
    damages = {
        "header length 0": (dict(length=0), "model.safetensors"),
        "header length 2^63": (dict(length=2**63), "model.safetensors"),
        "header longer than the file": (dict(length=10**6), "model.safetensors"),
        "header that is no JSON": (dict(change=lambda h, d: (b"{not json", d)), "model.safetensors"),
        "header that is a list": (dict(change=lambda h, d: (b"[]", d)), "model.safetensors"),
        "overlapping offsets": (dict(change=moved(-64)), NORM, "overlap"),
        "descending offsets": (dict(change=entry(data_offsets=[128, 0])), NORM),
        "offsets past the end": (dict(change=moved(10**9)), NORM),
        "a hole": (dict(change=with_hole), "model.safetensors"),
        "an unknown dtype": (dict(change=entry(dtype="F7")), NORM),
        "a shape of another size": (dict(change=entry(shape=[65])), NORM),
        "a negative shape": (dict(change=entry(shape=[-64])), NORM),
        "a shard that ends early": (dict(change=lambda h, d: (h, d[:-1000])), "model.safetensors"),
        "a shard that is too long": (dict(change=lambda h, d: (h, d + b"x" * 10)), "model.safetensors"),
        "a missing tensor": (dict(change=without_norm), NORM, "model.safetensors"),
    }
    for name, (options, *names) in damages.items():
        safetensors(file, **options)
        assert str(model) in refusal(model, *names), name
    file.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 327504\n")
    assert str(model) in refusal(model, "model.safetensors")
    file.write_bytes(b"")
    assert str(model) in refusal(model, "model.safetensors")


@case("BC-146")
def test_missing_shards_and_configurations_are_refused(tmp_path):
    model = tmp_path / "model"
    tiny_model(model)
    file, index = model / "model.safetensors", model / "model.safetensors.index.json"
    names = [name for name in tiny_tensors()]
    shutil.copy(file, model / "one.safetensors")
    file.unlink()
    placed = dict.fromkeys(names, "one.safetensors")
    write_json(index, {"weight_map": placed | {NORM: "two.safetensors"}})
    refusal(model, "two.safetensors")
    write_json(index, {"weight_map": placed | {"model.layers.9.mlp.up_proj.weight": "one.safetensors"}})
    refusal(model, "model.layers.9.mlp.up_proj.weight")
    index.unlink()
    shutil.copy(model / "one.safetensors", model / "two.safetensors")
    refusal(model, "index", "safetensors")
    (model / "two.safetensors").unlink()
    config = json.loads((model / "config.json").read_text())
    write_json(model / "config.json", config | {"hidden_size": 128})
    refusal(model, "128", "hidden_size", "shape")
    (model / "config.json").unlink()
    refusal(model, "config.json")


def head_of(server):
    reply = complete(server, {"prompt": [5, 6, 7], "max_tokens": 4, "temperature": 0, "logprobs": 5})
    return reply["choices"][0]["logprobs"]["token_logprobs"]


@case("BC-148")
def test_tied_embeddings_and_a_head_in_the_file(servers, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tied")
    weights = tiny_tensors()
    embedding = weights["model.embed_tokens.weight"]
    present = weights | {"lm_head.weight": np.roll(embedding, 1, axis=0)}
    equal = weights | {"lm_head.weight": embedding}

    def variant(name, tied, tensors):
        return tiny_model(folder / name, config={"tie_word_embeddings": tied}, tensors=tensors)

    absent = servers(model=variant("true-absent", True, weights))
    both = servers(model=variant("true-present", True, present))
    assert head_of(both) == head_of(absent) and "lm_head.weight" in both.read(both.log)
    same = servers(model=variant("true-equal", True, equal))
    assert head_of(same) == head_of(absent) and "lm_head.weight" not in same.read(same.log)
    own, own_equal = (servers(model=variant(f"false-{n}", False, each)) for n, each in enumerate((present, equal)))
    assert head_of(own) != head_of(absent) and head_of(own_equal) == head_of(absent)
    refusal(variant("false-absent", False, weights), "lm_head.weight", "tie_word_embeddings")


def twins(kind):
    """A GGUF file with two tokens of one text, or with a token without text: the file and the two ids."""
    gguf = Gguf()
    texts, kinds = gguf.values["tokenizer.ggml.tokens"][1][1], gguf.values["tokenizer.ggml.token_type"][1][1]
    first, last = {"words": texts.index("A"), "ends": texts.index("<|im_end|>"), "empty": 0}[kind], len(texts) - 1
    texts[last], kinds[last] = ("", 1) if kind == "empty" else (texts[first], kinds[first])
    merges = gguf.values["tokenizer.ggml.merges"][1][1]
    merges[:] = [merge for merge in merges if merge.replace(" ", "") in texts]  # the last token has lost its text
    return gguf, first, last


@pytest.mark.parametrize("kind", ["words", "ends", "empty"])
@case("BC-176")
def test_tokens_of_equal_text_in_a_gguf_file(servers, tmp_path_factory, kind):
    gguf, first, last = twins(kind)
    model = gguf.write(tmp_path_factory.getbasetemp() / f"twins-{kind}.gguf")
    status, told = run(model, "generate", "--prompt", "A", "--max-tokens", "2")
    assert status >= 0, "no abort"
    if status > 0:
        assert re.search(rf"\b{last}\b", told) and (kind == "empty" or re.search(rf"\b{first}\b", told)), told
        return
    server = servers(model=model)
    written = {"words": "A", "ends": "<|im_end|>", "empty": ""}[kind]
    if written:
        assert good(post(server, "/tokenize", {"prompt": written}))["tokens"] == [first], "the first id wins"
    body = {"prompt": [5, 6], "max_tokens": 3, "temperature": 0, "logit_bias": {str(last): 100}}
    whole, _ = both_ways(server, COMPLETE, body)
    assert text(whole) == ("AAA" if kind == "words" else "")
