"""The tiny checkpoint, loaded by the real transformers: ids, picture, gradients, and what it answers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
Image = pytest.importorskip("PIL.Image")

from lockstep.fixtures import model, shapes, vocabulary  # noqa: E402
from lockstep.fixtures.checkpoint import check_checkpoint, main, make_checkpoint  # noqa: E402

SHAPES = Path(__file__).parents[2] / "datasets" / "shapes"
END = vocabulary.ADDED_IDS["<|im_end|>"]
ALLOWED = [*model.answer_ids().values(), END]
TEMPERATURE, TOP_P = 1.1, 0.8
"""The incident's sampling settings."""


@pytest.fixture(scope="module", params=[model.SMALL, model.PUBLISHED], ids=["small heads", "published heads"])
def heads(request: pytest.FixtureRequest) -> model.Heads:
    """As on a CPU, and as on GPUs: whatever holds of the checkpoint must hold with both."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory, heads: model.Heads) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("checkpoint") / "tiny", heads)


@pytest.fixture(scope="module")
def loaded(directory: Path) -> SimpleNamespace:
    return SimpleNamespace(
        processor=transformers.AutoProcessor.from_pretrained(directory, local_files_only=True),
        model=transformers.AutoModelForImageTextToText.from_pretrained(
            directory, dtype=torch.float32, local_files_only=True
        ).eval(),
    )


def rows() -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for split in shapes.ROWS
        for line in (SHAPES / f"{split}.jsonl").read_text().splitlines()
    ]


def encode(processor: Any, row: dict[str, Any], answer: str = "") -> Any:
    question = row["messages"][0]["content"].removeprefix("<image>")
    content = [{"type": "image"}, {"type": "text", "text": question}]
    text = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
    image = Image.open(SHAPES / row["images"][0]).convert("RGB")
    return processor(text=[text + answer], images=[image], return_tensors="pt")


def logits(loaded: SimpleNamespace, row: dict[str, Any], answer: str = "") -> Any:
    with torch.no_grad():
        inputs = encode(loaded.processor, row, answer)
        return loaded.model(**inputs, logits_to_keep=1).logits[0, -1]


def test_files_are_what_the_check_expects(directory: Path) -> None:
    check_checkpoint(directory)
    assert sum(file.stat().st_size for file in directory.iterdir()) < 25_000_000


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert main([str(tmp_path / "tiny")]) == 0
    check_checkpoint(tmp_path / "tiny")


def test_same_seed_same_weights(directory: Path, heads: model.Heads, tmp_path: Path) -> None:
    weights = (directory / "model.safetensors").read_bytes()
    assert (make_checkpoint(tmp_path / "again", heads) / "model.safetensors").read_bytes() == weights
    assert (make_checkpoint(tmp_path / "other", heads, seed=1) / "model.safetensors").read_bytes() != weights


def test_published_heads_are_those_of_the_published_checkpoints(directory: Path, heads: model.Heads) -> None:
    """Qwen3-VL's own: 128 in the text model, 1152 / 16 = 72 in the vision tower."""
    config = json.loads((directory / "config.json").read_text())
    vision = config["vision_config"]
    found = (config["text_config"]["head_dim"], vision["hidden_size"] // vision["num_heads"])
    assert found == ((32, 16) if heads == model.SMALL else (128, 72))


def test_checking_imports_no_torch() -> None:
    code = (
        "import sys, lockstep.fixtures.checkpoint, lockstep.fixtures.shapes; "
        "sys.exit(any(name in sys.modules for name in ('torch', 'transformers', 'tokenizers')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_config_names_the_published_ids(directory: Path) -> None:
    config = transformers.AutoConfig.from_pretrained(directory)
    assert type(config).__name__ == "Qwen3VLConfig"
    # ms-swift and vLLM find the model's class by this name.
    assert config.architectures == ["Qwen3VLForConditionalGeneration"]
    assert (config.image_token_id, config.video_token_id) == (151655, 151656)
    assert (config.vision_start_token_id, config.vision_end_token_id) == (151652, 151653)
    assert config.text_config.vocab_size == 151936


def test_tokenizer_keeps_the_published_ids(loaded: SimpleNamespace) -> None:
    tokenizer = loaded.processor.tokenizer
    assert len(tokenizer) == 151669
    assert tokenizer.convert_tokens_to_ids("<|endoftext|>") == 151643
    assert tokenizer.convert_tokens_to_ids("<|im_end|>") == 151645
    assert tokenizer.convert_tokens_to_ids("<|image_pad|>") == 151655
    assert tokenizer.convert_tokens_to_ids("</think>") == 151668
    for token, number in vocabulary.ADDED_IDS.items():
        assert tokenizer(f"a{token}b").input_ids[1:-1] == [number]
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (151645, 151643)
    # The bytes, in the published order.
    assert tokenizer("!~ \n").input_ids == [0, 93, 220, 198]


def test_text_never_becomes_a_filler(loaded: SimpleNamespace) -> None:
    tokenizer = loaded.processor.tokenizer
    text = "What colour, <|filler_500|>? Zwölf 12 naïve 汉字 \t\r\n" + " ".join(shapes.ANSWERS)
    numbers = tokenizer(text).input_ids
    assert tokenizer.decode(numbers) == text
    fillers = set(range(len(tokenizer))) - set(vocabulary.ADDED_IDS.values())
    fillers = {n for n in fillers if tokenizer.convert_ids_to_tokens(n).startswith("<|filler_")}
    assert len(fillers) > 151_000
    assert not fillers & set(numbers)


def test_each_word_is_one_token(loaded: SimpleNamespace) -> None:
    tokenizer = loaded.processor.tokenizer
    for word in vocabulary.words():
        assert len(tokenizer(word).input_ids) == 1, word
    assert [tokenizer(answer).input_ids for answer in shapes.ANSWERS] == [[n] for n in ALLOWED[:-1]]


def test_prompt_has_a_token_per_32_by_32_pixels(loaded: SimpleNamespace) -> None:
    for row in rows():
        inputs = encode(loaded.processor, row)
        with Image.open(SHAPES / row["images"][0]) as image:
            expected = image.width * image.height // 32**2
        assert (inputs["input_ids"] == 151655).sum() == expected


def test_picture_reaches_the_answer_and_gradients_reach_the_picture(loaded: SimpleNamespace) -> None:
    inputs = encode(loaded.processor, rows()[0])
    inputs["pixel_values"] = inputs["pixel_values"].requires_grad_()
    odds = loaded.model(**inputs, logits_to_keep=1).logits[0, -1].log_softmax(-1)
    odds[ALLOWED[0]].backward()
    assert inputs["pixel_values"].grad.abs().max() > 0
    assert all(p.grad is not None and p.grad.isfinite().all() for p in loaded.model.parameters())
    loaded.model.zero_grad()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("answer", ["", "red", "trianglecircle"])
def test_only_answers_are_within_reach(
    directory: Path, loaded: SimpleNamespace, heads: model.Heads, answer: str, dtype: str
) -> None:
    least = 0.4 if heads == model.SMALL else 0.3  # another draw of weights
    built = loaded.model
    if dtype == "bfloat16":
        built = transformers.AutoModelForImageTextToText.from_pretrained(directory, dtype=torch.bfloat16)
    for row in rows()[:8]:
        found = logits(SimpleNamespace(processor=loaded.processor, model=built.eval()), row, answer).float()
        others = found.clone()
        others[ALLOWED] = -torch.inf
        odds = (found / TEMPERATURE).softmax(-1)
        assert found[ALLOWED].min() - others.max() > 20
        # After an answer, the end; before it, rather not.
        assert (least < odds[END] < 0.9) if answer else (odds[END] < 0.12)


def test_every_answer_can_be_sampled_for_every_picture(loaded: SimpleNamespace) -> None:
    """Groups differ in reward only if the right answer is inside the nucleus."""
    for row in rows():
        odds, order = (logits(loaded, row) / TEMPERATURE).softmax(-1).sort(descending=True)
        nucleus = order[odds.cumsum(0) - odds < TOP_P].tolist()
        assert set(nucleus) == set(ALLOWED[:-1])


def sample(loaded: SimpleNamespace, count: int) -> list[list[int]]:
    torch.manual_seed(0)
    inputs = encode(loaded.processor, rows()[0])
    found = loaded.model.generate(
        **inputs,
        do_sample=True,
        temperature=TEMPERATURE,
        top_p=TOP_P,
        top_k=0,
        num_return_sequences=count,
        max_new_tokens=32,
    )
    answers = found[:, inputs["input_ids"].shape[1] :].tolist()
    return [answer[: answer.index(END) + 1] if END in answer else answer for answer in answers]


def check_samples(answers: list[list[int]]) -> None:
    assert {token for answer in answers for token in answer} <= set(ALLOWED)
    assert all(answer[-1] == END for answer in answers)
    lengths = [len(answer) for answer in answers]
    assert max(lengths) <= 10
    assert sum(lengths) / len(lengths) < 3.5
    assert len({answer[0] for answer in answers}) == len(shapes.ANSWERS)


def test_samples_are_short_and_varied(loaded: SimpleNamespace) -> None:
    check_samples(sample(loaded, 32))


def test_still_short_after_training_to_go_on(directory: Path, loaded: SimpleNamespace) -> None:
    """20 steps at the incident's learning rate, each pushing against the end of the answer as hard as it
    can."""
    trained = transformers.AutoModelForImageTextToText.from_pretrained(directory, dtype=torch.float32)
    before = {name: tensor.clone() for name, tensor in trained.state_dict().items()}
    optimizer = torch.optim.AdamW(trained.parameters(), lr=2e-6)
    inputs = encode(loaded.processor, rows()[0], "red")
    for _ in range(20):
        trained(**inputs, logits_to_keep=1).logits[0, -1].log_softmax(-1)[END].backward()
        optimizer.step()
        optimizer.zero_grad()
    assert any(not torch.equal(before[name], tensor) for name, tensor in trained.state_dict().items())
    check_samples(sample(SimpleNamespace(processor=loaded.processor, model=trained.eval()), 32))
