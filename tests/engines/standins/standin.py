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
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar, NoReturn

HERE = Path(__file__).absolute().parent
PLAN = json.loads((HERE / "standin.json").read_text())
TOOL = Path(sys.argv[0]).name.removeprefix("llama-")
ARGS = sys.argv[1:]
STARTED = "llama_model_loader: loaded meta data with 18 key-value pairs and 21 tensors\n"
AT_WORK = (
    f"{STARTED}[   1/  21] blk.0.ffn_down.weight - [   512,    256,      1,      1], type =    f16,"
    " converting to q4_K .. "
)
OVER = "over 4 chunks, n_ctx=128, batch_size=2048, n_seq=16\n"
NEGATIVE = "Unexpected negative standard deviation of log(prob)\n"
# What it prints on standard error, and its status, or the signal that ends it (negative).
ENDS = {
    "segfault": (AT_WORK, -signal.SIGSEGV),
    # The assertion is glued to the unfinished progress line, as seen.
    "abort": (
        f"{AT_WORK}/build/ggml/src/ggml.c:21847: GGML_ASSERT(result == nrows * row_size) failed\n",
        -signal.SIGABRT,
    ),
    "terminate": (
        "terminate called after throwing an instance of 'std::length_error'\n"
        "  what():  vector::_M_default_append\n",
        -signal.SIGABRT,
    ),
    "killed": (STARTED, -signal.SIGKILL),
    "silent": ("", 0),
    "error_without_text": ("", 1),
    "error_with_text": (
        "llama_model_quantize: failed to quantize: Missing importance matrix for tensor "
        "blk.0.ffn_down.weight in a very low-bit quantization\n",
        1,
    ),
    "out_of_memory": (
        "ggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate buffer of size 99999999999\n"
        "llama_init_from_model: failed to initialize the context\n",
        1,
    ),
    "disk_full": (
        "llama_model_quantize: failed to quantize: basic_ios::clear: No space left on device\n",
        1,
    ),
    "missing_library": (
        f"{sys.argv[0]}: error while loading shared libraries: libllama.so.0: cannot open shared "
        "object file: No such file or directory\n",
        127,
    ),
    "flood": (("x" * 1023 + "\n") * 4096 + "the end of the flood\n", 1),
    "terminal_codes": ("\x1b]0;owned\x07\x1b[2J\x1b[31mred\x1b[0m \x9b31m\n", 1),
    "too_short": (
        "perplexity: tokenizing the input ..\nperplexity: you need at least 256 tokens to "
        "evaluate perplexity with a context of 128\nperplexity: the data file you provided "
        "tokenizes to only 12 tokens\n",
        0,
    ),
}
HALF_WRITTEN = ("error_with_text", "disk_full")


def err(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


def out(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def value(*flags: str) -> str:
    return next((str(ARGS[ARGS.index(flag) + 1]) for flag in flags if flag in ARGS), "")


def output() -> Path:
    """The file this call was asked to write."""
    if TOOL == "quantize":
        return Path(ARGS[-3])
    return Path(value("-o", "--kl-divergence-base", "--save-all-logits") or "/dev/null")


def real_argv(args: list[str]) -> list[str]:
    if PLAN["real"] is None:
        err("stand-in: there is no real tool behind this one\n")
        sys.exit(99)
    return [str(Path(PLAN["real"]) / f"llama-{TOOL}"), *args]


def real(args: list[str]) -> NoReturn:
    """Become the real tool."""
    argv = real_argv(args)
    os.execv(argv[0], argv)


def run_real() -> tuple[str, str]:
    """Let the real tool do the work, to lie about it afterwards: both streams."""
    argv = real_argv(ARGS)
    done = subprocess.run(argv, capture_output=True, stdin=subprocess.DEVNULL, check=False)
    return done.stdout.decode(), done.stderr.decode()


def finish(how: int) -> NoReturn:
    """With this status, or as the kernel would end it, without Python's say."""
    if how >= 0:
        sys.exit(how)
    if how != -signal.SIGKILL:
        signal.signal(-how, signal.SIG_DFL)
    os.kill(os.getpid(), -how)
    time.sleep(60)
    sys.exit(98)


def hang() -> None:
    err(STARTED)
    time.sleep(3600)


def hang_deaf() -> None:
    """Hangs, ignores SIGTERM, and has a child that would survive it."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.fork() == 0:
        time.sleep(3600)
    hang()


def busy() -> None:
    err(STARTED)
    end = time.monotonic() + 2
    while time.process_time() < 0.8 and time.monotonic() < end + 8:
        pass
    sys.exit(3)


def nan() -> None:
    if TOOL == "imatrix":
        err(f"compute_imatrix: computing {OVER}")
        out("[1]nan,[2]nan,[3]nan,[4]nan,\n")
        output().write_bytes(b"GGUF" + bytes(400))
    else:
        err(f"perplexity: calculating perplexity {OVER}")
        out("[1]12.1000,[2]nan,[3]nan,[4]nan,\n")
    err(NEGATIVE)


def few_chunks() -> None:
    text, said = run_real()
    last, final = text.rfind(",["), text.find("\nFinal")
    out(text[:last] + ",\n" + (text[final:] if final >= 0 else ""))
    err(said)


def no_file() -> None:
    out(
        "\nllama_quantize: quantize time =   152.80 ms\nllama_quantize:    total time = 152.80 ms\n"
    )


def partial() -> None:
    """The whole log, the success line, exit 0, and half a file."""
    printed, said = run_real()
    whole = output().read_bytes()
    output().write_bytes(whole[: len(whole) // 2])
    err(said)
    out(printed)


def no_last_line() -> None:
    err(run_real()[1])


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
    printed, said = run_real()
    err(said.replace("converting to q8_0 ..", "converting to q6_K .."))
    out(printed)


def fewer_tensors() -> None:
    """1,025 of 1,147 tensors written: another model's file stands at the output."""
    printed, said = run_real()
    shutil.copy(PLAN["other_model"], output())
    err(said)
    out(printed)


def other_vocabulary() -> None:
    printed, _ = run_real()
    err("kl_divergence: inconsistent vocabulary (320 vs 321)\n")
    out(printed)


def short_base() -> None:
    out(run_real()[0].split("======")[0])
    err("kl_divergence: failed reading log-probs for chunk 3\n")


TIMINGS = {"prompt_n": 4, "prompt_ms": 1.0, "predicted_n": 8, "predicted_ms": 9.0}
GOOD = {"content": "text", "tokens": [5, 6], "stop_type": "limit", "timings": TIMINGS}
WRONG_TIMINGS = {
    "more_accepted": {"draft_n": 3, "draft_n_accepted": 4},
    "too_many": {"predicted_n": 10_000},
}
# What a server says of itself before it serves.
SAID = {
    "cut_context": "srv load_model: initializing, n_slots = 1, n_ctx_slot = 128, kv_unified = 0\n",
    "other_threads": "system_info: n_threads = 77 (n_threads_batch = 8) / 16 | CPU : SSE3 = 1 |\n",
    "no_drafting": "srv load_model: the target and draft vocabs are not compatible\n",
}


class Handler(BaseHTTPRequestHandler):
    fault = "ok"
    recorded: ClassVar[dict[str, Any]] = {}

    def do_GET(self) -> None:
        if self.path == "/health" and self.fault == "never_ready":
            return self.answer({"error": {"message": "Loading model", "code": 503}}, 503)
        drafting = "--spec-type" in ARGS and self.fault != "no_drafting"
        slots = [{"id": 0, "speculative": self.recorded.get("speculative", drafting)}]
        return self.answer(slots if self.path == "/slots" else {"status": "ok"})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        if self.fault == "dies":
            err("/build/ggml/src/ggml.c:1: GGML_ASSERT(n_tokens > 0) failed\n")
            finish(-signal.SIGABRT)
        if self.fault == "exits_cleanly":
            os._exit(0)
        if self.fault == "never_answers":
            time.sleep(3600)
        if self.fault == "error_status":
            return self.answer({"error": {"message": "the context \x1b[2J is full"}}, 400)
        if self.fault == "no_json":
            return self.raw(b"<html>not json</html>")
        if not self.recorded:
            wrong = WRONG_TIMINGS.get(self.fault, {})
            return self.answer(GOOD | {"timings": TIMINGS | wrong})
        timings = TIMINGS | {"predicted_n": 16} | self.recorded.get("counts", {})
        found: dict[str, Any] = GOOD | {"tokens": list(range(16)), "timings": timings}
        if "types" in self.recorded:
            found["generation_settings"] = {"speculative.types": self.recorded["types"]}
        return self.answer(found)

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


def serve() -> None:
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    HTTPServer(("127.0.0.1", int(value("--port"))), Handler).serve_forever()


def recorded_server(plan: dict[str, Any]) -> None:
    """As a real one was seen: its log, and how it ended, or what it answers."""
    err(plan["log"])
    if "status" in plan or "signal" in plan:
        finish(plan.get("status", -plan.get("signal", 0)))
    Handler.recorded = {"speculative": None} | plan
    serve()


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
        real(ARGS)
    mark.touch()
    err("couldn't bind to server socket: hostname=127.0.0.1\n")
    sys.exit(1)


def show(plan: dict[str, Any]) -> None:
    fault = plan["fault"]
    if fault == "recorded_server":
        recorded_server(plan)
    elif fault.startswith("server-"):
        Handler.fault = fault.removeprefix("server-")
        err("main: server is listening\n" + SAID.get(Handler.fault, ""))
        serve()
    elif fault in ENDS:
        text, how = ENDS[fault]
        if TOOL == "quantize" and fault in HALF_WRITTEN:
            output().write_bytes(b"GGUF" + bytes(4096))
        err(text)
        finish(how)
    else:
        globals()[fault]()


def main() -> None:
    if ARGS[:1] in (["--help"], ["--version"]):
        recorded = Path(PLAN["recorded"])
        text = "version" if ARGS == ["--version"] and TOOL != "quantize" else TOOL
        out((recorded / f"{text}.txt").read_text())
        sys.exit(1 if TOOL == "quantize" else 0)
    for plan in PLAN["faults"]:
        if plan["tool"] in (TOOL, "*") and plan["when"] in " ".join(ARGS):
            show(plan)
            sys.exit(0)
    real(ARGS)


if __name__ == "__main__":
    main()
