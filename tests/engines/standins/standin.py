"""A stand-in for one tool of an engine, misbehaving as the real ones were seen to.

It lies in a bin directory under the names of all tools, next to ``standin.json``: ``python`` and
``recorded`` (a folder of real help texts), ``real`` (the directory of the real tools, or null)
and ``faults``, a list of ``{tool, fault, when}``. A call whose arguments contain ``when`` shows
the fault; any other becomes the real tool. The environment cannot carry the choice: cook scrubs
it. Where each fault was seen is in docs/internals/engines.md.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar, NoReturn

HERE = Path(__file__).absolute().parent
PLAN = json.loads((HERE / "standin.json").read_text())
TOOL = Path(sys.argv[0]).name.removeprefix("llama-")
ARGS = sys.argv[1:]
TENSOR = "[   1/  21] blk.0.ffn_down.weight - [   512,    256,      1,      1], type =    f16, "


def err(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


def out(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def value(*flags: str) -> str:
    for flag in flags:
        if flag in ARGS:
            return str(ARGS[ARGS.index(flag) + 1])
    return ""


def output() -> Path:
    """The file this call was asked to write."""
    if TOOL == "quantize":
        return Path(ARGS[-3])
    return Path(value("-o", "--kl-divergence-base", "--save-all-logits") or "/dev/null")


def real_argv(args: list[str] | None = None) -> list[str]:
    if PLAN["real"] is None:
        err("stand-in: there is no real tool behind this one\n")
        sys.exit(99)
    return [str(Path(PLAN["real"]) / f"llama-{TOOL}"), *(ARGS if args is None else args)]


def real(args: list[str] | None = None) -> NoReturn:
    """Become the real tool."""
    argv = real_argv(args)
    os.execv(argv[0], argv)


def run_real() -> subprocess.CompletedProcess[bytes]:
    """Let the real tool do the work, to lie about it afterwards."""
    return subprocess.run(real_argv(), capture_output=True, stdin=subprocess.DEVNULL, check=False)


def die(number: int) -> None:
    """End as the kernel would end it, without Python's say."""
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    time.sleep(60)


def started() -> None:
    err("llama_model_loader: loaded meta data with 18 key-value pairs and 21 tensors\n")


def segfault() -> None:
    started()
    err(TENSOR + "converting to q4_K .. ")
    die(signal.SIGSEGV)


def abort() -> None:
    started()
    # The assertion is glued to the unfinished progress line, as seen.
    err(TENSOR + "converting to q4_K .. ")
    err("/build/ggml/src/ggml.c:21847: GGML_ASSERT(result == nrows * row_size) failed\n")
    die(signal.SIGABRT)


def terminate() -> None:
    err("terminate called after throwing an instance of 'std::length_error'\n")
    err("  what():  vector::_M_default_append\n")
    die(signal.SIGABRT)


def killed() -> None:
    started()
    die(signal.SIGKILL)


def silent() -> None:
    sys.exit(0)


def error_without_text() -> None:
    sys.exit(1)


def error_with_text() -> None:
    err(
        "llama_model_quantize: failed to quantize: Missing importance matrix for tensor "
        "blk.0.ffn_down.weight in a very low-bit quantization\n"
    )
    if TOOL == "quantize":
        output().write_bytes(b"GGUF" + bytes(4096))
    sys.exit(1)


def hang() -> None:
    started()
    time.sleep(3600)


def hang_deaf() -> None:
    """Hangs, ignores SIGTERM, and has a child that would survive it."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.fork() == 0:
        time.sleep(3600)
    hang()


def busy() -> None:
    started()
    end = time.monotonic() + 2
    while time.process_time() < 0.8 and time.monotonic() < end + 8:
        pass
    sys.exit(3)


def out_of_memory() -> None:
    err(
        "ggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate buffer of size 99999999999\n"
    )
    err("llama_init_from_model: failed to initialize the context\n")
    sys.exit(1)


def disk_full() -> None:
    output().write_bytes(b"GGUF" + bytes(4096))
    err("llama_model_quantize: failed to quantize: basic_ios::clear: No space left on device\n")
    sys.exit(1)


def missing_library() -> None:
    err(
        f"{sys.argv[0]}: error while loading shared libraries: libllama.so.0: cannot open shared "
        "object file: No such file or directory\n"
    )
    sys.exit(127)


def flood() -> None:
    line = b"x" * 1023 + b"\n"
    for _ in range(4096):
        os.write(2, line)
    err("the end of the flood\n")
    sys.exit(1)


def terminal_codes() -> None:
    err("\x1b]0;owned\x07\x1b[2J\x1b[31mred\x1b[0m \x9b31m\n")
    sys.exit(1)


def nan() -> None:
    if TOOL == "imatrix":
        err("compute_imatrix: computing over 4 chunks, n_ctx=128, batch_size=2048, n_seq=16\n")
        out("[1]nan,[2]nan,[3]nan,[4]nan,\n")
        output().write_bytes(b"GGUF" + bytes(400))
        err("Unexpected negative standard deviation of log(prob)\n")
        sys.exit(0)
    err("perplexity: calculating perplexity over 4 chunks, n_ctx=128, batch_size=2048, n_seq=16\n")
    out("[1]12.1000,[2]nan,[3]nan,[4]nan,\n")
    err("Unexpected negative standard deviation of log(prob)\n")
    sys.exit(0)


def too_short() -> None:
    err(
        "perplexity: tokenizing the input ..\nperplexity: you need at least 256 tokens to "
        "evaluate perplexity with a context of 128\nperplexity: the data file you provided "
        "tokenizes to only 12 tokens\n"
    )
    sys.exit(0)


def few_chunks() -> None:
    done = run_real()
    text = done.stdout.decode()
    last = text.rfind(",[")
    end = text.find("\nFinal")
    out(text[:last] + ",\n" + (text[end:] if end >= 0 else ""))
    err(done.stderr.decode())
    sys.exit(0)


def no_file() -> None:
    out(
        "\nllama_quantize: quantize time =   152.80 ms\nllama_quantize:    total time = 152.80 ms\n"
    )
    sys.exit(0)


def partial() -> None:
    """The whole log, the success line, exit 0, and half a file."""
    done = run_real()
    path = output()
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    err(done.stderr.decode())
    out(done.stdout.decode())
    sys.exit(0)


def no_last_line() -> None:
    done = run_real()
    err(done.stderr.decode())
    sys.exit(0)


def garbage_file() -> None:
    output().write_bytes(os.urandom(4096))
    no_file()


def ignored_rules() -> None:
    """A rule that the engine ignores without a word."""
    args = list(ARGS)
    for flag in ("--tensor-type", "--custom-q"):
        while flag in args:
            del args[args.index(flag) : args.index(flag) + 2]
    real(args)


def lying_log() -> None:
    done = run_real()
    err(done.stderr.decode().replace("converting to q8_0 ..", "converting to q6_K .."))
    out(done.stdout.decode())
    sys.exit(done.returncode)


def fewer_tensors() -> None:
    """1,025 of 1,147 tensors written: another model's file stands at the output."""
    done = run_real()
    shutil.copy(PLAN["other_model"], output())
    err(done.stderr.decode())
    out(done.stdout.decode())
    sys.exit(0)


def other_vocabulary() -> None:
    done = run_real()
    err("kl_divergence: inconsistent vocabulary (320 vs 321)\n")
    out(done.stdout.decode())
    sys.exit(0)


def short_base() -> None:
    done = run_real()
    out(done.stdout.decode().split("======")[0])
    err("kl_divergence: failed reading log-probs for chunk 3\n")
    sys.exit(0)


class Handler(BaseHTTPRequestHandler):
    fault = "ok"

    def do_GET(self) -> None:
        if self.path == "/health" and self.fault == "never_ready":
            return self.answer({"error": {"message": "Loading model", "code": 503}}, 503)
        if self.path == "/slots":
            drafting = "--spec-type" in ARGS and self.fault != "no_drafting"
            return self.answer([{"id": 0, "speculative": drafting}])
        return self.answer({"status": "ok"})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        timings = {"prompt_n": 4, "prompt_ms": 1.0, "predicted_n": 8, "predicted_ms": 9.0}
        good = {"content": "text", "tokens": [5, 6], "stop_type": "limit", "timings": timings}
        if self.fault == "dies":
            err("/build/ggml/src/ggml.c:1: GGML_ASSERT(n_tokens > 0) failed\n")
            die(signal.SIGABRT)
        if self.fault == "exits_cleanly":
            os._exit(0)
        if self.fault == "never_answers":
            time.sleep(3600)
        if self.fault == "error_status":
            return self.answer({"error": {"message": "the context \x1b[2J is full"}}, 400)
        if self.fault == "no_json":
            return self.raw(b"<html>not json</html>")
        if self.fault == "negative_time":
            return self.answer(good | {"timings": timings | {"predicted_ms": -1.0}})
        if self.fault == "more_accepted":
            counts = {"draft_n": 3, "draft_n_accepted": 4}
            return self.answer(good | {"timings": timings | counts})
        if self.fault == "too_many":
            return self.answer(good | {"timings": timings | {"predicted_n": 10_000}})
        return self.answer(good)

    def answer(self, document: object, status: int = 200) -> None:
        self.raw(json.dumps(document).encode(), status)

    def raw(self, body: bytes, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


class Recorded(Handler):
    plan: ClassVar[dict[str, Any]] = {}

    def do_GET(self) -> None:
        slots = [{"id": 0, "speculative": self.plan.get("speculative")}]
        self.answer(slots if self.path == "/slots" else {"status": "ok"})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        timings = {"prompt_n": 4, "prompt_ms": 1.0, "predicted_n": 16, "predicted_ms": 9.0}
        found: dict[str, Any] = {"content": "text", "tokens": list(range(16)), "stop_type": "limit"}
        if "types" in self.plan:
            found["generation_settings"] = {"speculative.types": self.plan["types"]}
        self.answer(found | {"timings": timings | self.plan.get("counts", {})})


def server(fault: str) -> Callable[[], None]:
    def run() -> None:
        err("main: server is listening\n")
        if fault == "cut_context":
            err("srv load_model: initializing, n_slots = 1, n_ctx_slot = 128, kv_unified = 0\n")
        if fault == "other_threads":
            err("system_info: n_threads = 77 (n_threads_batch = 8) / 16 | CPU : SSE3 = 1 |\n")
        if fault == "no_drafting":
            err("srv load_model: the target and draft vocabs are not compatible\n")
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
        Handler.fault = fault
        HTTPServer(("127.0.0.1", int(value("--port"))), Handler).serve_forever()

    return run


def recorded_server(plan: dict[str, Any]) -> NoReturn:
    """As a real one was seen: its log, and how it ended, or what it answers."""
    err(plan["log"])
    if "status" in plan:
        sys.exit(plan["status"])
    if "signal" in plan:
        die(plan["signal"])
    Recorded.plan = plan
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    HTTPServer(("127.0.0.1", int(value("--port"))), Recorded).serve_forever()
    sys.exit(98)


def speculates() -> None:
    """Drafts from n-grams of the text whatever it is given, and repeats itself soon."""
    ngrams = ("--spec-ngram-mod-n-match", "4", "--spec-ngram-mod-n-min", "1")
    real([*ARGS, "--spec-type", "ngram-mod", *ngrams, "--spec-ngram-mod-n-max", "8"])


def speculates_on_ik() -> None:
    """A stage of n-grams before what it was given."""
    at = ARGS.index("--spec-type") if "--spec-type" in ARGS else len(ARGS)
    stage = "ngram-mod:n_max=8,n_min=1,ngram_size_n=4"
    real([*ARGS[:at], "--spec-type", stage, *ARGS[at:]])


def speculates_unless_told() -> None:
    """As llama.cpp #28391 has it: n-grams unless --no-spec-type takes them away."""
    if "--no-spec-type" not in ARGS:
        speculates()
    at = ARGS.index("--no-spec-type")
    if "ngram-mod" not in ARGS[at + 1].split(","):
        speculates()
    real([*ARGS[:at], *ARGS[at + 2 :]])


def port_taken() -> None:
    mark = HERE / "port-was-taken"
    if mark.exists():
        real()
    mark.touch()
    err("couldn't bind to server socket: hostname=127.0.0.1\n")
    sys.exit(1)


def main() -> None:
    if ARGS[:1] in (["--help"], ["--version"]):
        recorded = Path(PLAN["recorded"])
        text = "version" if ARGS == ["--version"] and TOOL != "quantize" else TOOL
        out((recorded / f"{text}.txt").read_text())
        sys.exit(1 if TOOL == "quantize" else 0)
    for plan in PLAN["faults"]:
        if plan["tool"] in (TOOL, "*") and plan["when"] in " ".join(ARGS):
            name = plan["fault"]
            if name == "recorded_server":
                recorded_server(plan)
            (
                server(name.removeprefix("server-"))
                if name.startswith("server-")
                else globals()[name]
            )()
            sys.exit(98)
    real()


if __name__ == "__main__":
    main()
