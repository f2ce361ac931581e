"""Commands are read by their options, whatever their order."""

from __future__ import annotations

from cook.record.record import StepRecord
from cook.report.commands import by_option, quantize_command, server_command, value_of


def step(*words: str) -> StepRecord:
    return StepRecord("quantize Q", "quantize", "0" * 64, "ran", 1.0, words)


def test_a_server_is_run_again_without_our_address_and_key() -> None:
    ran = ("llama-server", "--host", "127.0.0.1", "-m", "a", "--api-key-file", "k", "--port", "1")
    assert server_command(ran) == ("llama-server", "-m", "a")
    assert server_command(("llama-server", "--port")) == ("llama-server",)
    assert server_command(()) == ()


def test_a_quantize_command_is_known_by_its_usage() -> None:
    made = quantize_command(step("q", "--pure", "--imatrix", "m", "in", "out", "Q4_0", "8"))
    assert (made.source, made.output, made.imatrix) == ("in", "out", "m")
    bare = quantize_command(step("q", "in", "out", "Q4_0", "8"))
    assert bare.imatrix is None
    assert quantize_command(step("q", "--help")) is None


def test_the_value_of_an_option() -> None:
    assert value_of(("a", "-o", "b"), "-o") == "b"
    assert value_of(("a", "-o"), "-o") is None
    assert value_of(("a",), "-o") is None


def test_an_option_keeps_its_value_on_its_line() -> None:
    words = ("tool", "-a", "1", "--flag", "-n", "-1", "in", "o u t")
    assert by_option(words) == ["tool", "-a 1", "--flag", "-n -1", "in", "'o u t'"]
    assert by_option(words, lambda word: f"<{word}>")[1] == "<-a> <1>"
