import json

import pytest

from pipeline.cells.own_sizes import read_sizes, unmodelled
from pipeline.errors import UserError
from pipeline.formulas.parameters import parameter_count
from pipeline.formulas.sizes import SIZES, OwnSize

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


def config_json(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps({**LLAMA, **changes}, indent=2))
    return str(path)


def test_numbers_a_config_json_and_a_yaml_file_give_sizes(tmp_path):
    (tmp_path / "sizes.yaml").write_text(f"mine: {json.dumps(NUMBERS)}\nllama: {config_json(tmp_path)}\n")
    sizes = read_sizes(str(tmp_path / "sizes.yaml"), "sizes")
    words = {key: str(number) for key, number in NUMBERS.items()}  # as Snakemake's --config has them
    assert read_sizes({"mine": words}, "sizes")["mine"] == sizes["mine"]
    assert SIZES[sizes["mine"]] == OwnSize(64, 96, 2, 8, num_kv_heads=8, vocab_size=0)
    assert SIZES[sizes["llama"]] == OwnSize(
        2048, 8192, 16, 32, num_kv_heads=8, vocab_size=128256, without=("rope_scaling",)
    )


# model_type, hidden_size, intermediate_size, layers, heads, heads of keys, vocab_size, head_dim
PUBLISHED = {
    "Qwen3-0.6B": (("qwen3", 1024, 3072, 28, 16, 8, 151_936, 128), 596.0, 2048),
    "SmolLM2-135M": (("llama", 576, 1536, 30, 9, 3, 49_152, None), 134.5, 576),
    "Qwen2.5-3B": (("qwen2", 2048, 11_008, 36, 16, 2, 151_936, None), 3085.9, 2048),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_with_tied_embeddings_a_model_has_its_published_parameters(tmp_path, name):
    numbers, millions, attention_width = PUBLISHED[name]
    keys = ["model_type", *list(LLAMA)[2:7], "vocab_size", "head_dim"]
    path = config_json(tmp_path, **dict(zip(keys, numbers, strict=True)), tie_word_embeddings=True)
    size = SIZES[read_sizes({"mine": path}, "sizes")["mine"]]
    assert parameter_count(size, 0) / 1e6 == pytest.approx(millions, abs=0.06)
    assert SIZES[size.name("mine")].tie_embeddings
    assert size.attention_width == attention_width


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rope_scaling": None}, ()),
        ({"rope_scaling": None, "rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}, ()),
        ({"rope_scaling": None, "sliding_window": 4096, "use_sliding_window": False}, ()),
        ({"rope_scaling": {"rope_type": "yarn"}}, ("rope_scaling",)),
        ({"rope_scaling": None, "rope_parameters": {"rope_type": "llama3"}}, ("rope_scaling",)),
        ({"rope_scaling": None, "model_type": "mistral", "sliding_window": 4096}, ("window",)),
        ({"rope_scaling": None, "attention_bias": True, "hidden_act": "gelu"}, ("activation", "bias")),
        (
            {"rope_scaling": None, "model_type": "qwen2", "sliding_window": 9, "use_sliding_window": True},
            ("bias", "window"),
        ),
        ({"rope_scaling": None, "model_type": "qwen3"}, ("qk_norm",)),
    ],
)
def test_what_of_a_model_is_left_out_is_in_the_name_and_told(tmp_path, changes, words):
    name = read_sizes({"mine": config_json(tmp_path, **changes)}, "sizes")["mine"]
    assert SIZES[name].without == words
    told = unmodelled([name, "small", "XXL"])  # the last is no size, but a model of accounting
    assert len(told) == bool(words)
    assert all(name in line for line in told)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({**NUMBERS, "depth": 3}, "sizes: mine: unknown key 'depth': must be one of d_model, d_ff, num_layers"),
        ({"d_model": 64}, "sizes: mine has no d_ff, num_layers, num_heads"),
        ({**NUMBERS, "d_ff": 1.5}, "sizes: mine: d_ff must be a value of type int, got 1.5"),
        ({**NUMBERS, "d_ff": -3}, "sizes: mine: d_ff must be at least 1 and below 100 million, got -3"),
        (
            {**NUMBERS, "num_heads": 7},
            "sizes: mine: num_heads must divide d_model 64 where no head_dim is given, got 7",
        ),
        ({**NUMBERS, "num_kv_heads": 3}, "sizes: mine: num_kv_heads must divide num_heads 8, got 3"),
        ({**NUMBERS, "vocab_size": 1}, "sizes: mine: vocab_size must be at least 2 and below 100 million, or 0"),
        (3, "sizes: mine must be a mapping of d_model, d_ff, num_layers"),
        ("gone.json", "cannot read gone.json: No such file or directory"),
        ({"model_type": "gpt2"}, "model_type must be one of llama, mistral, qwen2, qwen3, got 'gpt2'"),
        ({"head_dim": 127, "model_type": "llama"}, "head_dim must be even for rotary positions, got 127"),
        ({"hidden_size": None}, "config.json has no hidden_size (d_model)"),
        ({"tie_word_embeddings": "often"}, "tie_embeddings must be a value of type bool, got 'often'"),
    ],
)
def test_a_mistake_in_numbers_or_a_config_json_is_one_line(tmp_path, given, said):
    if isinstance(given, dict) and not given.keys() & NUMBERS.keys():
        given = config_json(tmp_path, **given)
    with pytest.raises(UserError) as raised:
        read_sizes({"mine": given}, "sizes")
    assert said in str(raised.value)


@pytest.mark.parametrize("name", ["small", "my-model", "a" * 25, ""])
def test_a_name_that_cannot_be_is_refused(name):
    with pytest.raises(UserError, match=r"the pipeline has a size of this name|a name must be at most 24"):
        read_sizes({name: NUMBERS}, "sizes")
