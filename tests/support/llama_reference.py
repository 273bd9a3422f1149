"""A Llama forward pass in numpy float64, independent of the engine: the oracle for the tiny safetensors models."""
import json
import math
import struct

import numpy as np


def load(folder):
    """config.json and the float64 tensors of model.safetensors."""
    raw = (folder / "model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    tensors = {}
    for name, info in json.loads(raw[8 : 8 + length]).items():
        if name == "__metadata__":
            continue
        begin, end = info["data_offsets"]
        data = raw[8 + length + begin : 8 + length + end]
        if info["dtype"] == "BF16":
            values = (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)
        else:
            values = np.frombuffer(data, {"F32": np.float32, "F16": np.float16}[info["dtype"]])
        tensors[name] = values.astype(np.float64).reshape(info["shape"])
    return json.loads((folder / "config.json").read_text()), tensors


def inverse_frequencies(rope, dim):
    frequencies = 1.0 / rope["rope_theta"] ** (np.arange(0, dim, 2) / dim)
    if rope["rope_type"] == "default":
        return frequencies
    assert rope["rope_type"] == "llama3"
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    context = rope["original_max_position_embeddings"]
    wavelength = 2 * math.pi / frequencies
    blend = np.clip((context / wavelength - low) / (high - low), 0, 1)
    return (1 - blend) * frequencies / rope["factor"] + blend * frequencies


def logits(config, tensors, token_ids):
    """[tokens, vocab]"""
    heads, kv_heads, dim = (config[k] for k in ("num_attention_heads", "num_key_value_heads", "head_dim"))
    count = len(token_ids)
    angle = np.outer(np.arange(count), inverse_frequencies(config["rope_parameters"], dim))
    cos, sin = (np.concatenate([f(angle)] * 2, axis=1)[:, None, :] for f in (np.cos, np.sin))
    causal = np.tril(np.ones((count, count), bool))

    def norm(x, weight):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + config["rms_norm_eps"]) * weight

    def rotate(x):
        half = np.concatenate([-x[..., dim // 2 :], x[..., : dim // 2]], -1)
        return x * cos + half * sin

    hidden = tensors["model.embed_tokens.weight"][token_ids]
    for layer in range(config["num_hidden_layers"]):
        weight = lambda name: tensors[f"model.layers.{layer}.{name}.weight"]  # noqa: E731
        x = norm(hidden, weight("input_layernorm"))
        q, k, v = ((x @ weight(f"self_attn.{n}_proj").T).reshape(count, -1, dim) for n in "qkv")
        q, k = rotate(q), rotate(k)
        out = np.empty_like(q)
        for head in range(heads):
            kv_head = head // (heads // kv_heads)
            score = np.where(causal, q[:, head] @ k[:, kv_head].T / math.sqrt(dim), -np.inf)
            share = np.exp(score - score.max(-1, keepdims=True))
            out[:, head] = share / share.sum(-1, keepdims=True) @ v[:, kv_head]
        hidden = hidden + out.reshape(count, -1) @ weight("self_attn.o_proj").T
        x = norm(hidden, weight("post_attention_layernorm"))
        gate = x @ weight("mlp.gate_proj").T
        hidden = hidden + (gate / (1 + np.exp(-gate)) * (x @ weight("mlp.up_proj").T)) @ weight("mlp.down_proj").T
    head = tensors.get("lm_head.weight", tensors["model.embed_tokens.weight"])
    return norm(hidden, tensors["model.norm.weight"]) @ head.T
