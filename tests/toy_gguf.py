"""GGUF files of small models, by the format's own library."""

import gguf
import numpy as np


def write_gguf(path, model, kind="F32", *, raw=None, fields=None, tensors=None):
    """A GGUF file by its own library; matrices of a kind, vectors in F32."""
    config, params = model.config, model.params
    architecture = "llama" if model.family == "mistral" else model.family
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(config.max_length)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_rope_freq_base(config.rope_base)
    writer.add_layer_norm_rms_eps(config.norm_epsilon)
    for name, value in (fields or {}).items():
        writer.add_key_value(name, value, gguf.GGUFValueType.get_type(value))
    kind = gguf.GGMLQuantizationType[kind]

    def add(name, array):
        array = np.ascontiguousarray(np.asarray(array, np.float32))
        if array.ndim == 1:
            return writer.add_tensor(name, array)
        data = gguf.quants.quantize(array, kind) if raw is None else raw(array.shape)
        return writer.add_tensor(name, data, raw_dtype=kind)

    add("token_embd.weight", params["embedding"])
    add("output_norm.weight", params["norm"]["scale"])
    if not config.tied_embeddings:
        add("output.weight", params["output"]["kernel"].T)
    names = {
        "attention_norm": "attn_norm",
        "gated_norm": "ffn_norm",
        "query_projection": "attn_q",
        "key_projection": "attn_k",
        "value_projection": "attn_v",
        "attention_output": "attn_output",
        "query_norm": "attn_q_norm",
        "key_norm": "attn_k_norm",
        "gate": "ffn_gate",
        "up": "ffn_up",
        "down": "ffn_down",
    }
    for index in range(config.num_layers):
        for name, part in params["layers"].items():
            for leaf, array in part.items():
                array = np.asarray(array[index]).T
                if architecture == "llama" and name in ("query_projection", "key_projection"):
                    # Neighbours turn together there: i and i + D / 2 come to lie side by side.
                    array = array.reshape(-1, 2, config.head_dim // 2, config.hidden_size).swapaxes(1, 2)
                    array = array.reshape(-1, config.hidden_size)
                add(f"blk.{index}.{names[name]}.{'bias' if leaf == 'bias' else 'weight'}", array)
    for name, array in (tensors or {}).items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
