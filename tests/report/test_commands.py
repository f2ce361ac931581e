"""Commands are read by their options, whatever their order."""

from __future__ import annotations

from cook.report.commands import by_option, quantize_command, server_command, value_of
from tests.report.records import step


def test_a_server_is_run_again_without_our_address_and_key() -> None:
    ran = ("llama-server", "--host", "127.0.0.1", "-m", "a", "--api-key-file", "k", "--port", "1")
    assert server_command(ran) == ("llama-server", "-m", "a")
    assert server_command(("llama-server", "--port")) == ("llama-server",)
    assert server_command(()) == ()


def test_a_quantize_command_is_known_by_its_usage() -> None:
    words = ("q", "--pure", "--imatrix", "m", "in", "out", "Q4_0", "8")
    made = quantize_command(step("quantize Q", "0", *words))
    assert (made.source, made.output, made.imatrix) == ("in", "out", "m")
    assert quantize_command(step("quantize Q", "0", "q", *words[4:])).imatrix is None
    assert quantize_command(step("quantize Q", "0", "q", "--help")) is None


def test_an_option_has_its_value_and_keeps_it_on_its_line() -> None:
    assert value_of(("a", "-o", "b"), "-o") == "b"
    assert value_of(("a", "-o"), "-o") is value_of(("a",), "-o") is None
    words = ("tool", "-a", "1", "--flag", "-n", "-1", "in", "o u t")
    assert by_option(words) == ["tool", "-a 1", "--flag", "-n -1", "in", "'o u t'"]
    assert by_option(words, lambda word: f"<{word}>")[1] == "<-a> <1>"
