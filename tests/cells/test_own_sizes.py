import json

import pytest

from pipeline.cells.own_sizes import read_sizes, unmodelled
from pipeline.formulas.parameters import left_out_parameter_count, parameter_count
from pipeline.formulas.sizes import SIZES, OwnSize

from ..complaints import complaint

NUMBERS = {"d_model": 64, "d_ff": 96, "num_layers": 2, "num_heads": 8}
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "rope_scaling": {"factor": 32.0},
    "vocab_size": 128256,
}
BIASED = {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False}


def config_json(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps({**LLAMA, **changes}, indent=2))
    return str(path)


def test_sizes_come_from_numbers_a_config_json_or_a_yaml_file(tmp_path):
    (tmp_path / "sizes.yaml").write_text(f"mine: {json.dumps(NUMBERS)}\nllama: {config_json(tmp_path)}\n")
    sizes = read_sizes(str(tmp_path / "sizes.yaml"), "sizes")
    words = {key: str(number) for key, number in NUMBERS.items()}  # as Snakemake's --config passes them
    assert read_sizes({"mine": words}, "sizes")["mine"] == sizes["mine"]
    assert SIZES[sizes["mine"]] == OwnSize(64, 96, 2, 8, num_kv_heads=8, vocab_size=0)
    more = {"vocab_size": 128256, "without": ("rope_scaling",)}
    assert SIZES[sizes["llama"]] == OwnSize(2048, 8192, 16, 32, num_kv_heads=8, **more)


# num_parameters() of AutoModelForCausalLM.from_config in transformers 5.24 for each published config.json, and its
# model_type, hidden_size, intermediate_size, layers, heads, key-value heads, vocab_size and other keys that count.
TRANSFORMERS_COUNTS = {
    "Llama-3.2-1B": (1_235_814_400, "llama", 2048, 8192, 16, 32, 8, 128_256, {"head_dim": 64}),
    "SmolLM2-135M": (134_515_008, "llama", 576, 1536, 30, 9, 3, 49_152, {}),
    "Mistral-7B-v0.1": (7_241_732_096, "mistral", 4096, 14_336, 32, 32, 8, 32_000, {"tie_word_embeddings": False}),
    "Qwen2.5-0.5B": (494_032_768, "qwen2", 896, 4864, 24, 14, 2, 151_936, {}),
    "Qwen3-0.6B": (596_049_920, "qwen3", 1024, 3072, 28, 16, 8, 151_936, {}),  # head_dim by default
    "gemma-2b": (2_506_172_416, "gemma", 2048, 16_384, 18, 8, 1, 256_000, {"tie_word_embeddings": None}),
    "Phi-3-mini-4k": (3_821_079_552, "phi3", 3072, 8192, 32, 32, 32, 32_064, {"tie_word_embeddings": False}),
    "all biases": (71_296, "llama", 64, 96, 2, 8, 2, 100, BIASED),
    "Qwen3 with biases": (381_376, "qwen3", 64, 96, 2, 8, 2, 100, {**BIASED, "mlp_bias": None}),
}


@pytest.mark.parametrize("name", TRANSFORMERS_COUNTS)
def test_modelled_plus_left_out_parameters_match_transformers_count(tmp_path, name):
    count, *numbers, more = TRANSFORMERS_COUNTS[name]
    keys = ["model_type", *list(LLAMA)[2:7], "vocab_size"]
    of_file = dict(zip(keys, numbers, strict=True)) | {"tie_word_embeddings": True, "head_dim": None} | more
    size = SIZES[read_sizes({"mine": config_json(tmp_path, **of_file)}, "sizes")["mine"]]
    assert parameter_count(size, 0) + left_out_parameter_count(size) == count
    assert SIZES[size.name("mine")] == size


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ()),
        ({"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}, ()),
        ({"sliding_window": 4096, "use_sliding_window": False}, ()),
        ({"rope_scaling": {"rope_type": "yarn"}}, ("rope_scaling",)),
        ({"rope_parameters": {"rope_type": "llama3"}}, ("rope_scaling",)),
        ({"model_type": "mistral", "sliding_window": 4096}, ("window",)),
        ({"attention_bias": True, "hidden_act": "gelu"}, ("activation", "bias", "output_bias")),
        ({"mlp_bias": True}, ("mlp_bias",)),
        ({"model_type": "qwen2", "sliding_window": 9, "use_sliding_window": True}, ("bias", "window")),
        ({"model_type": "qwen3"}, ("qk_norm",)),
    ],
)
def test_features_left_out_of_a_model_are_in_its_name_and_reported(tmp_path, changes, words):
    name = read_sizes({"mine": config_json(tmp_path, **{"rope_scaling": None, **changes})}, "sizes")["mine"]
    assert SIZES[name].without == words
    remarks = unmodelled([name, "small", "XXL"])  # the last is not a size but a model of the accounting stage
    assert len(remarks) == bool(words)
    assert all(name in line for line in remarks)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({**NUMBERS, "depth": 3}, "sizes: mine: unknown key 'depth': must be one of d_model, d_ff, num_layers"),
        ({"d_model": 64, "num_layer": 2}, "sizes: mine: unknown key 'num_layer'"),
        ({"d_model": 64}, "sizes: mine has no d_ff, num_layers, num_heads"),
        ({**NUMBERS, "d_ff": 1.5}, "sizes: mine: d_ff must be a whole number, got 1.5"),
        ({**NUMBERS, "d_ff": -3}, "sizes: mine: d_ff must be at least 1 and below 100 million, got -3"),
        ({**NUMBERS, "num_heads": 7}, "num_heads must divide d_model 64 where no head_dim is given, got 7"),
        ({**NUMBERS, "num_kv_heads": 3}, "sizes: mine: num_kv_heads must divide num_heads 8, got 3"),
        ({**NUMBERS, "vocab_size": 1}, "sizes: mine: vocab_size must be at least 2 and below 100 million, or 0"),
        (3, "sizes: mine must be a mapping of d_model, d_ff, num_layers"),
        ("gone.json", "cannot read gone.json: No such file or directory"),
        ({"model_type": "mixtral"}, "got 'mixtral', which has a mixture of experts"),
        ({"model_type": "bert"}, "model_type must be one of llama, mistral, qwen2, qwen3, phi3, gemma, got 'bert'"),
        ({"num_local_experts": 8}, "num_local_experts must be absent, because experts are not modelled, got 8"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor must be 1, because whole heads are rotated, got 0.5"),
        ({"rope_scaling": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor must be 1, because whole heads are"),
        ({"head_dim": 127, "model_type": "llama"}, "head_dim must be even for rotary positions, got 127"),
        ({"hidden_size": None}, "config.json has no hidden_size (d_model)"),
        ({"tie_word_embeddings": "often"}, "tie_embeddings must be true or false, got 'often'"),
    ],
)
def test_a_mistake_in_numbers_or_a_config_json_is_reported_in_one_line(tmp_path, given, message):
    if isinstance(given, dict) and not given.keys() & NUMBERS.keys():
        given = config_json(tmp_path, **given)
    assert message in complaint(read_sizes, {"mine": given}, "sizes")


def test_taken_and_invalid_names_are_refused():
    assert "this name is taken" in complaint(read_sizes, {"small": NUMBERS}, "sizes")
    for name in ("my-model", "a" * 25, ""):
        assert "a name must be at most 24" in complaint(read_sizes, {name: NUMBERS}, "sizes")
