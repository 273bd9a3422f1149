"""Small models for the cases: one whose output is a script, and tiny-llama with parts exchanged, as folder or GGUF."""
import json
import pathlib
import shutil
import struct
import sys

import numpy as np

TESTS = pathlib.Path(__file__).resolve().parents[2]
TINY, TINY_LLAMA3 = (TESTS / "data" / "models" / name for name in ("tiny-llama", "tiny-llama3-rope"))
sys.path.insert(0, str(TESTS / "support"))

import llama_reference  # noqa: E402

END, TURN, END_OF_TURN = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CHATML = (TINY / "chat_template.jinja").read_text()


def byte_alphabet():
    """GPT-2's: the printable character that stands for each byte in a byte-level vocabulary."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in shown]
    return {byte: chr(byte) for byte in shown} | {byte: chr(256 + n) for n, byte in enumerate(rest)}


ALPHABET = byte_alphabet()


def written(piece):
    return "".join(ALPHABET[byte] for byte in piece)


def save_tensors(path, tensors):
    """A safetensors file of float32 arrays; its layout is what BC-146 damages."""
    header, data = {}, b""
    for name, values in tensors.items():
        raw = np.ascontiguousarray(values, dtype="<f4").tobytes()
        header[name] = {"dtype": "F32", "shape": list(values.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    pathlib.Path(path).write_bytes(struct.pack("<Q", len(text)) + text + data)


def write_json(path, value):
    pathlib.Path(path).write_text(json.dumps(value))


def scripted_model(folder, script, *, ends=(END_OF_TURN,), rows=0, loop=False):
    """A model that answers every prompt with `script`: a list of pieces, bytes or the text of a control token.

    Whatever stands at the end of the prompt, the first piece follows, then each piece's successor, then the end of the
    turn (or the first piece again). A piece is one token, so no piece comes twice. `ends`: control tokens that the
    configuration names as ends. `rows`: rows of the vocabulary beyond the tokenizer's tokens; a piece that is an int is
    the id of such a row.
    """
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    control = [END, TURN, END_OF_TURN]
    vocabulary = {text: n for n, text in enumerate(control)}
    for piece in [bytes([byte]) for byte in range(256)] + [piece for piece in script if isinstance(piece, bytes)]:
        vocabulary.setdefault(written(piece), len(vocabulary))
    count, width = len(vocabulary) + rows, 512
    assert count <= width and len(set(script)) == len(script)
    ids = [piece if isinstance(piece, int) else vocabulary[written(piece) if isinstance(piece, bytes) else piece]
           for piece in script]
    following = dict.fromkeys(range(count), ids[0])
    following |= dict(zip(ids, [*ids[1:], ids[0] if loop else vocabulary[END_OF_TURN]]))
    head = np.zeros((count, width))
    for last, following_id in following.items():
        head[following_id, last] = 1.0
    # Attention and feed-forward add nothing: the last token alone decides.
    layer = {"self_attn.q_proj": (64, width), "self_attn.k_proj": (64, width), "self_attn.v_proj": (64, width),
             "self_attn.o_proj": (width, 64), "mlp.gate_proj": (64, width), "mlp.up_proj": (64, width),
             "mlp.down_proj": (width, 64)}
    tensors = {"model.embed_tokens.weight": np.eye(count, width), "lm_head.weight": head,
               "model.norm.weight": np.ones(width)}
    tensors |= {f"model.layers.0.{name}.weight": np.zeros(shape) for name, shape in layer.items()}
    tensors |= {f"model.layers.0.{name}.weight": np.ones(width) for name in ("input_layernorm", "post_attention_layernorm")}
    save_tensors(folder / "model.safetensors", tensors)
    config = json.loads((TINY / "config.json").read_text()) | {
        "num_hidden_layers": 1, "hidden_size": width, "intermediate_size": 64, "num_attention_heads": 1,
        "num_key_value_heads": 1, "head_dim": 64, "vocab_size": count, "tie_word_embeddings": False,
        "eos_token_id": [vocabulary[end] for end in ends]}
    write_json(folder / "config.json", config)
    tokenizer = json.loads((TINY / "tokenizer.json").read_text())
    tokenizer["model"] |= {"vocab": vocabulary, "merges": []}
    write_json(folder / "tokenizer.json", tokenizer)
    write_json(folder / "tokenizer_config.json", {"eos_token": ends[0]} if ends else {})
    (folder / "chat_template.jinja").write_text(CHATML)
    return str(folder)


def tiny_model(folder, source=TINY, template=None, tensors=None, **files):
    """A copy of a tiny model. `config`, `generation_config`, `tokenizer` and `tokenizer_config` are changes of a JSON
    file: a dict of new values or a function that changes the old ones in place. None as a value removes the key."""
    folder = pathlib.Path(folder)
    shutil.copytree(source, folder)
    for name, change in files.items():
        path = folder / f"{name}.json"
        value = json.loads(path.read_text())
        if callable(change):
            change(value)
        else:
            value |= change
        write_json(path, {key: each for key, each in value.items() if each is not None})
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    if tensors is not None:
        save_tensors(folder / "model.safetensors", tensors)
    return str(folder)


def tiny_tensors(source=TINY):
    return llama_reference.load(source)[1]


# ---- GGUF

U32, F32, STRING, ARRAY, I32, U64 = 4, 6, 8, 9, 5, 10


def gguf_text(text):
    raw = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(raw)) + raw


def gguf_value(kind, value):
    if kind == STRING:
        return gguf_text(value)
    if kind == ARRAY:
        item, values = value
        return struct.pack("<IQ", item, len(values)) + b"".join(gguf_value(item, each) for each in values)
    return struct.pack({U32: "<I", F32: "<f", I32: "<i", U64: "<Q"}[kind], value)


def interleaved(weight, heads):
    """Rows of q or k as llama.cpp's converter orders them: the two of a rotated pair are neighbours."""
    rows, width = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, width).swapaxes(1, 2).reshape(rows, width)


class Gguf:
    """A tiny Hugging Face folder as a GGUF file that can be damaged part by part before it is written.

    `values`: {key: (type, value)}; `tensors`: a list of [name, dimensions (innermost first), type, offset]."""

    def __init__(self, source=TINY):
        config, weights = llama_reference.load(source)
        tokenizer = json.loads((source / "tokenizer.json").read_text())
        special = {token["id"] for token in tokenizer["added_tokens"]}
        texts = [text for text, _ in sorted(tokenizer["model"]["vocab"].items(), key=lambda item: item[1])]
        merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in tokenizer["model"]["merges"]]
        self.magic, self.version, self.alignment = b"GGUF", 3, 32
        self.values = {
            "general.architecture": (STRING, "llama"),
            "llama.block_count": (U32, config["num_hidden_layers"]),
            "llama.context_length": (U32, config["max_position_embeddings"]),
            "llama.embedding_length": (U32, config["hidden_size"]),
            "llama.feed_forward_length": (U32, config["intermediate_size"]),
            "llama.attention.head_count": (U32, config["num_attention_heads"]),
            "llama.attention.head_count_kv": (U32, config["num_key_value_heads"]),
            "llama.attention.key_length": (U32, config["head_dim"]),
            "llama.attention.value_length": (U32, config["head_dim"]),
            "llama.attention.layer_norm_rms_epsilon": (F32, config["rms_norm_eps"]),
            "llama.rope.dimension_count": (U32, config["head_dim"]),
            "llama.rope.freq_base": (F32, config["rope_parameters"]["rope_theta"]),
            "tokenizer.ggml.model": (STRING, "gpt2"),
            "tokenizer.ggml.pre": (STRING, "gpt-2"),
            "tokenizer.ggml.tokens": (ARRAY, (STRING, texts)),
            "tokenizer.ggml.token_type": (ARRAY, (I32, [3 if n in special else 1 for n in range(len(texts))])),
            "tokenizer.ggml.merges": (ARRAY, (STRING, merges)),
            "tokenizer.ggml.bos_token_id": (U32, config["bos_token_id"]),
            "tokenizer.ggml.eos_token_id": (U32, config["eos_token_id"]),
            "tokenizer.ggml.add_bos_token": (7, False),
            "tokenizer.chat_template": (STRING, CHATML),
        }
        names = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
                 "lm_head.weight": "output.weight"}
        parts = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
                 "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm",
                 "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
        for layer in range(config["num_hidden_layers"]):
            names |= {f"model.layers.{layer}.{here}.weight": f"blk.{layer}.{there}.weight" for here, there in parts.items()}
        self.tensors, self.data = [], b""
        for name, values in weights.items():
            if "q_proj" in name or "k_proj" in name:
                values = interleaved(values, config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"])
            self.add_tensor(names[name], values)

    def add_tensor(self, name, values):
        raw = np.ascontiguousarray(values, dtype="<f4").tobytes()
        self.tensors.append([name, list(reversed(values.shape)), 0, len(self.data)])
        self.data += raw + bytes(-len(raw) % self.alignment)

    def header(self):
        out = self.magic + struct.pack("<IQQ", self.version, len(self.tensors), len(self.values))
        for key, (kind, value) in self.values.items():
            raw = value if isinstance(value, bytes) and kind != STRING else None  # already encoded, to damage it
            if kind == 7:
                raw = bytes([value])
            out += gguf_text(key) + struct.pack("<I", kind) + (gguf_value(kind, value) if raw is None else raw)
        for name, dimensions, kind, offset in self.tensors:
            out += gguf_text(name) + struct.pack(f"<I{len(dimensions)}Q", len(dimensions), *dimensions)
            out += struct.pack("<IQ", kind, offset)
        return out

    def bytes(self):
        header = self.header()
        return header + bytes(-len(header) % self.alignment) + self.data

    def write(self, path):
        pathlib.Path(path).write_bytes(self.bytes())
        return str(path)
