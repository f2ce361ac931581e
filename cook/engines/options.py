"""The options of the engines' tools, reviewed one by one: what raw flags a recipe may say.

Recipes and records are shared between strangers, and ``extra`` reaches a program that can
download over the user's model, write files, load libraries, or listen to the world. So ``extra``
takes only what this table calls harmless: placement, performance, memory, numerics and the
rendering of prompts, each with a value of a fixed form. Everything else is refused with its
reason; what the table does not know is refused too, whatever the binary makes of it.

Reviewed: llama.cpp as bundled with llama-cpp-python 0.3.36 (``common/arg.cpp``) and ik_llama.cpp
8337e4cd (``common/common.cpp``, ``common/log.h``). Both parsers read
``_`` as ``-`` in words that begin with ``--``, know no ``--flag=value`` and no prefixes, and take
the next word as the value, whatever it looks like: hence the fixed forms. To review another
version, run ``tests/engines/test_options.py`` against it: it names every flag that is new.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from cook.formats.quant_types import Flavour

UNSAFE_FLAG = "--allow-unsafe-args"
"""The option of cook's own command line that lets refused flags through."""


def other_machines(servers: Iterable[str]) -> list[str]:
    """Those of the RPC ``servers`` (``host:port``) that are not this machine.

    Such a server gets the weights and every prompt, so a file alone may not name one.
    """
    hosts = ((s, s.rpartition(":")[0].strip("[]")) for s in servers)
    return [server for server, host in hosts if host and host not in THIS_MACHINE]


THIS_MACHINE = frozenset({"127.0.0.1", "localhost", "::1"})


class Sets(StrEnum):
    """What a harmless flag sets."""

    PLACEMENT = "placement"
    PERFORMANCE = "performance"
    MEMORY = "memory"
    NUMERICS = "numerics"
    PROMPT = "prompt"


class Harm(StrEnum):
    """Why a flag is refused; the value completes "`--flag`: ..."."""

    DOWNLOADS = "it downloads, and writes over files"
    MODEL = "it replaces or changes the model"
    READS = "it reads a file"
    WRITES = "it writes files"
    LISTENS = "it opens the server to others"
    LOGS = "it writes a log, or hides what cook reads in it"
    CODE = "it loads or runs code"
    MEASURES = "it changes what is measured"
    ENDS = "the tool does something else and ends"
    OURS = "it is set by cook itself"


@dataclass(frozen=True)
class FlagValue:
    """The form of a flag's value; ``says`` tells it to people."""

    says: str
    pattern: str

    def fits(self, text: str) -> bool:
        return re.fullmatch(self.pattern, text, re.ASCII) is not None


@dataclass(frozen=True)
class Option:
    """One option of the tools of ``flavours`` in all its spellings.

    ``sets`` is what a harmless one sets, and None for one that is refused because of ``harm``;
    ``why`` is what it does, or the reason in more words. ``value`` is None for a switch.
    ``unlisted``: a build without a GPU takes it and leaves it out of its help.
    """

    spellings: tuple[str, ...]
    flavours: frozenset[Flavour]
    why: str
    sets: Sets | None = None
    harm: Harm | None = None
    value: FlagValue | None = None
    unlisted: bool = False

    @property
    def name(self) -> str:
        """The spelling for people: the longest."""
        return max(self.spellings, key=len)


@dataclass(frozen=True)
class Refusal:
    """Why the word at ``index`` of a list of raw flags may not pass.

    ``ours``: cook or a key of the recipe says it, and nothing lets it through. ``lacking``: it is
    harmless, and the engine at hand has not got it.
    """

    index: int
    message: str
    hint: str | None = None
    ours: bool = False
    lacking: bool = False


_LLAMA = frozenset({Flavour.LLAMA_CPP})
_IK = frozenset({Flavour.IK_LLAMA_CPP})
_BOTH = _LLAMA | _IK

_COUNT = FlagValue("a whole number", r"\d{1,9}")
_INTEGER = FlagValue("a whole number", r"-?\d{1,9}")
_REAL = FlagValue("a number", r"-?\d{1,9}(\.\d{1,9})?(e-?\d{1,2})?")
_SWITCH = FlagValue("0 or 1", r"[01]")
_MASK = FlagValue("a mask in hexadecimal", r"(0x)?[0-9a-fA-F]{1,256}")
_RANGE = FlagValue("first-last", r"\d{1,4}-\d{1,4}")
_SHARES = FlagValue("numbers with commas", r"\d{1,6}(\.\d{1,6})?([,/]\d{1,6}(\.\d{1,6})?){0,63}")
_PAIRS = FlagValue(
    "pairs of whole numbers with commas", r"\d{1,6},-?\d{1,6}(,\d{1,6},-?\d{1,6}){0,255}"
)
_PER_LAYER = FlagValue("TYPE,LAYERS", r"[A-Za-z0-9_]{1,12},\d{1,4}")


def _one_of(*words: str) -> FlagValue:
    return FlagValue(" or ".join(words), "|".join(map(re.escape, words)))


# kv_cache_type_from_str of ik's common/common.cpp
_CACHE_TYPE = _one_of(
    *("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1", "q6_0", "q8_KV")
)
# Real time (3) can starve the machine.
_PRIORITY = _one_of("-1", "0", "1", "2")


def _may(
    flavours: frozenset[Flavour],
    sets: Sets,
    spellings: str,
    why: str,
    value: FlagValue | None = None,
    *,
    unlisted: bool = False,
) -> Option:
    words = tuple(spellings.split())
    return Option(words, flavours, why, sets=sets, value=value, unlisted=unlisted)


def _no(
    flavours: frozenset[Flavour], harm: Harm, *listed: str, why: str = ""
) -> tuple[Option, ...]:
    """Refused options; each of ``listed`` is one option in its spellings."""
    return tuple(Option(tuple(words.split()), flavours, why or harm, harm=harm) for words in listed)


_HARMLESS = (
    # placement
    _may(_LLAMA, Sets.PLACEMENT, "-sm --split-mode", "how several GPUs share the model",
         _one_of("none", "layer", "row", "tensor")),
    _may(_IK, Sets.PLACEMENT, "-sm --split-mode", "how several GPUs share the model",
         _one_of("none", "layer", "attn", "graph"), unlisted=True),
    _may(_LLAMA, Sets.PLACEMENT, "-ts --tensor-split", "each GPU's share of the model", _SHARES),
    _may(_IK, Sets.PLACEMENT, "-ts --tensor-split", "each GPU's share of the model", _SHARES,
         unlisted=True),
    _may(_LLAMA, Sets.PLACEMENT, "-mg --main-gpu", "the GPU of what is not shared", _COUNT),
    _may(_IK, Sets.PLACEMENT, "-mg --main-gpu", "the GPU of what is not shared", _COUNT,
         unlisted=True),
    _may(_IK, Sets.PLACEMENT, "--max-gpu", "GPUs used at a time under `-sm graph`", _COUNT,
         unlisted=True),
    _may(_LLAMA, Sets.PLACEMENT, "-ncffn --n-cpu-ffn", "dense FFN of N layers in CPU memory",
         _COUNT),
    _may(_LLAMA, Sets.PLACEMENT, "-kvo --kv-offload -nkvo --no-kv-offload",
         "KV cache on the GPU or not"),
    _may(_IK, Sets.PLACEMENT, "-nkvo --no-kv-offload", "KV cache in CPU memory"),
    _may(_LLAMA, Sets.PLACEMENT, "--op-offload --no-op-offload",
         "large batches of CPU tensors computed on the GPU or not"),
    _may(_LLAMA, Sets.PLACEMENT, "--no-host", "no host buffers"),
    _may(_IK, Sets.PLACEMENT, "-op --offload-policy", "which operations go to the GPU", _PAIRS,
         unlisted=True),
    _may(_IK, Sets.PLACEMENT, "-no-ooae --no-offload-only-active-experts",
         "all experts go to the GPU with a batch", unlisted=True),
    _may(_IK, Sets.PLACEMENT, "--fit", "the engine places tensors by free GPU memory"),
    _may(_IK, Sets.PLACEMENT, "--fit-margin", "MiB left free by --fit", _COUNT),
    _may(_IK, Sets.PLACEMENT, "-gfm --gpu-fit-margin", "MiB left free on each GPU", _PAIRS),
    # performance
    _may(_LLAMA, Sets.PERFORMANCE, "-C --cpu-mask", "processors to use", _MASK),
    _may(_LLAMA, Sets.PERFORMANCE, "-Cr --cpu-range", "processors to use", _RANGE),
    _may(_LLAMA, Sets.PERFORMANCE, "--cpu-strict", "one processor a thread", _SWITCH),
    _may(_LLAMA, Sets.PERFORMANCE, "--prio", "priority of the threads", _PRIORITY),
    _may(_LLAMA, Sets.PERFORMANCE, "--poll", "how hard waiting threads poll", _COUNT),
    _may(_LLAMA, Sets.PERFORMANCE, "-Cb --cpu-mask-batch", "processors for batches", _MASK),
    _may(_LLAMA, Sets.PERFORMANCE, "-Crb --cpu-range-batch", "processors for batches", _RANGE),
    _may(_LLAMA, Sets.PERFORMANCE, "--cpu-strict-batch", "one processor a thread", _SWITCH),
    _may(_LLAMA, Sets.PERFORMANCE, "--prio-batch", "priority of the threads", _PRIORITY),
    _may(_LLAMA, Sets.PERFORMANCE, "--poll-batch", "how hard waiting threads poll", _COUNT),
    _may(_LLAMA, Sets.PERFORMANCE, "--spec-draft-cpu-mask -Cd --cpu-mask-draft",
         "processors of the draft", _MASK),
    _may(_LLAMA, Sets.PERFORMANCE, "--spec-draft-cpu-range -Crd --cpu-range-draft",
         "processors of the draft", _RANGE),
    _may(_LLAMA, Sets.PERFORMANCE, "--spec-draft-cpu-strict --cpu-strict-draft",
         "one processor a thread of the draft", _SWITCH),
    _may(_LLAMA, Sets.PERFORMANCE, "--spec-draft-prio --prio-draft",
         "priority of the draft's threads", _PRIORITY),
    _may(_LLAMA, Sets.PERFORMANCE, "--spec-draft-poll --poll-draft",
         "whether the draft's waiting threads poll", _SWITCH),
    _may(_LLAMA, Sets.PERFORMANCE, "--spec-draft-cpu-mask-batch -Cbd --cpu-mask-batch-draft",
         "processors for the draft's batches", _MASK),
    _may(_LLAMA, Sets.PERFORMANCE, "--spec-draft-cpu-strict-batch --cpu-strict-batch-draft",
         "one processor a thread of the draft", _SWITCH),
    _may(_LLAMA, Sets.PERFORMANCE, "--spec-draft-prio-batch --prio-batch-draft",
         "priority of the draft's threads", _PRIORITY),
    _may(_LLAMA, Sets.PERFORMANCE, "--spec-draft-poll-batch --poll-batch-draft",
         "whether the draft's waiting threads poll", _SWITCH),
    _may(_LLAMA, Sets.PERFORMANCE,
         "--spec-draft-backend-sampling --no-spec-draft-backend-sampling",
         "the draft's sampling on the GPU or not"),
    _may(_LLAMA, Sets.PERFORMANCE, "-bs --backend-sampling", "sampling on the GPU"),
    _may(_BOTH, Sets.PERFORMANCE, "--numa", "placement of threads on NUMA nodes",
         _one_of("distribute", "isolate", "numactl")),
    _may(_LLAMA, Sets.PERFORMANCE, "--repack -nr --no-repack", "weights rearranged for the CPU"),
    _may(_IK, Sets.PERFORMANCE, "-rtr --run-time-repack", "weights rearranged for the CPU"),
    _may(_LLAMA, Sets.PERFORMANCE, "--warmup --no-warmup", "an empty run at the start or not"),
    _may(_IK, Sets.PERFORMANCE, "--no-warmup", "no empty run at the start"),
    _may(_IK, Sets.PERFORMANCE, "-wb --warmup-batch", "a batch at the start"),
    _may(_LLAMA, Sets.PERFORMANCE, "-cb --cont-batching -nocb --no-cont-batching",
         "continuous batching"),
    _may(_IK, Sets.PERFORMANCE, "-cb --cont-batching", "continuous batching"),
    _may(_IK, Sets.PERFORMANCE, "-nocb --no-cont-batching", "no continuous batching"),
    _may(_LLAMA, Sets.PERFORMANCE, "--perf --no-perf", "timers inside the library"),
    _may(_BOTH, Sets.PERFORMANCE, "--threads-http", "threads for requests",
         FlagValue("a whole number", r"\d{1,3}")),
    _may(_BOTH, Sets.PERFORMANCE, "--check-tensors", "weights checked at the start"),
    _may(_IK, Sets.PERFORMANCE, "-vq --validate-quants", "weights checked at the start"),
    _may(_IK, Sets.PERFORMANCE, "-no-fmoe --no-fused-moe", "no fused experts"),
    _may(_IK, Sets.PERFORMANCE, "-no-fug --no-fused-up-gate", "no fused up and gate"),
    _may(_IK, Sets.PERFORMANCE, "-no-mmad --no-fused-mul-multiadd", "no fused multiply and add"),
    _may(_IK, Sets.PERFORMANCE, "-gr --graph-reuse", "graphs are used again"),
    _may(_IK, Sets.PERFORMANCE, "-no-gr --no-graph-reuse", "graphs are built anew"),
    _may(_IK, Sets.PERFORMANCE, "-mqkv --merge-qkv", "Q, K and V in one multiplication"),
    _may(_IK, Sets.PERFORMANCE, "-muge --merge-up-gate-experts", "up and gate in one"),
    _may(_IK, Sets.PERFORMANCE, "-smgs --split-mode-graph-scheduling", "scheduling of `-sm graph`"),
    _may(_IK, Sets.PERFORMANCE, "-sas --scheduler-async", "graphs computed asynchronously"),
    _may(_IK, Sets.PERFORMANCE, "-cuda --cuda-params", "settings of the CUDA backend",
         FlagValue("name=number with commas", r"[a-z0-9-]{1,40}=\d{1,9}(\.\d{1,6})?"
               r"(,[a-z0-9-]{1,40}=\d{1,9}(\.\d{1,6})?){0,15}")),
    _may(_IK, Sets.PERFORMANCE, "--prefetch-experts", "experts are read ahead"),
    _may(_IK, Sets.PERFORMANCE, "--prefetch-experts-threads", "threads that read ahead", _COUNT),
    # memory
    _may(_LLAMA, Sets.MEMORY, "-lm --load-mode", "how the file is mapped or locked in memory",
         _one_of("auto", "none", "mmap", "mlock", "mmap+mlock", "dio")),
    _may(_LLAMA, Sets.MEMORY, "-lzm --lazy-mode", "tensors read from disk on demand",
         _one_of("on", "auto", "off")),
    _may(_IK, Sets.MEMORY, "--mlock", "the model is locked in memory"),
    _may(_IK, Sets.MEMORY, "--no-mmap", "the file is read, not mapped"),
    _may(_IK, Sets.MEMORY, "-thp --transparent-huge-pages", "huge pages"),
    _may(_IK, Sets.MEMORY, "--defer-experts", "experts are mapped when they are needed"),
    _may(_LLAMA, Sets.MEMORY, "--swa-full", "full cache for sliding windows"),
    _may(_IK, Sets.MEMORY, "--swa-compress", "sliding windows cached at their own size"),
    _may(_LLAMA, Sets.MEMORY, "-kvu --kv-unified -no-kvu --no-kv-unified", "one KV buffer"),
    _may(_LLAMA, Sets.MEMORY, "--kv-unified-per-slot", "KV cells of each slot", _COUNT),
    _may(_LLAMA, Sets.MEMORY, "-ctxcp --ctx-checkpoints --swa-checkpoints",
         "checkpoints of a context", _COUNT),
    _may(_LLAMA, Sets.MEMORY, "-cms --checkpoint-min-step", "tokens between checkpoints", _INTEGER),
    _may(_LLAMA, Sets.MEMORY, "--cache-idle-slots --no-cache-idle-slots",
         "idle contexts are kept or not"),
    _may(_IK, Sets.MEMORY, "-ctx-ckpt --ctx-checkpoints", "checkpoints of a context", _COUNT),
    _may(_IK, Sets.MEMORY, "-ctx-ckpt-i --ctx-checkpoints-interval", "tokens between checkpoints",
         _INTEGER),
    _may(_IK, Sets.MEMORY, "-ctx-ckpt-t --ctx-checkpoints-tolerance",
         "tokens before a prompt's end", _INTEGER),
    _may(_IK, Sets.MEMORY, "-ctx-ckpt-e --ctx-checkpoints-eviction", "which checkpoint goes first",
         _one_of("fifo", "variance", "auto")),
    _may(_IK, Sets.MEMORY, "-amb --attention-max-batch", "MiB of attention's buffer", _COUNT),
    _may(_IK, Sets.MEMORY, "-wgt --worst-graph-tokens", "tokens the buffers are made for", _COUNT),
    _may(_IK, Sets.MEMORY, "-mea --max-extra-alloc", "MiB of extra GPU memory", _COUNT),
    _may(_BOTH, Sets.MEMORY, "-dt --defrag-thold", "when the KV cache is defragmented", _REAL),
    # numerics
    _may(_BOTH, Sets.NUMERICS, "--rope-scaling", "scaling of positions",
         _one_of("none", "linear", "yarn")),
    _may(_BOTH, Sets.NUMERICS, "--rope-scale", "scaling of positions", _REAL),
    _may(_BOTH, Sets.NUMERICS, "--rope-freq-base", "base of positions", _REAL),
    _may(_BOTH, Sets.NUMERICS, "--rope-freq-scale", "scaling of positions", _REAL),
    _may(_BOTH, Sets.NUMERICS, "--yarn-orig-ctx", "YaRN: context of the training", _COUNT),
    _may(_BOTH, Sets.NUMERICS, "--yarn-ext-factor", "YaRN: extrapolation", _REAL),
    _may(_BOTH, Sets.NUMERICS, "--yarn-attn-factor", "YaRN: attention", _REAL),
    _may(_BOTH, Sets.NUMERICS, "--yarn-beta-slow", "YaRN: correction", _REAL),
    _may(_BOTH, Sets.NUMERICS, "--yarn-beta-fast", "YaRN: correction", _REAL),
    _may(_IK, Sets.NUMERICS, "-mla --mla-use", "kind of MLA", _COUNT),
    _may(_IK, Sets.NUMERICS, "-dsa --dsa", "sparse attention"),
    _may(_IK, Sets.NUMERICS, "-fidx --fused-indexer-topk", "fused top-k of sparse attention"),
    _may(_IK, Sets.NUMERICS, "-dsatk --dsa-top-k", "top-k of sparse attention", _INTEGER),
    _may(_IK, Sets.NUMERICS, "-ger --grouped-expert-routing", "experts chosen in groups"),
    _may(_IK, Sets.NUMERICS, "-ser --smart-expert-reduction", "fewer experts",
         FlagValue("COUNT,THRESHOLD", r"-?\d{1,4},\d{1,4}(\.\d{1,6})?")),
    _may(_IK, Sets.NUMERICS, "-khad --k-cache-hadamard", "keys rotated before they are quantized"),
    _may(_IK, Sets.NUMERICS, "-vhad --v-cache-hadamard", "values rotated likewise"),
    _may(_IK, Sets.NUMERICS, "-smf16 --split-mode-f16", "f16 between GPUs"),
    _may(_IK, Sets.NUMERICS, "-smf32 --split-mode-f32", "f32 between GPUs"),
    _may(_IK, Sets.NUMERICS, "-grt --graph-reduce-type", "type between GPUs",
         _one_of("f32", "f16", "bf16", "q8_0")),
    _may(_IK, Sets.NUMERICS, "-gap --graph-attn-precision", "precision of attention",
         _one_of("f16", "f32")),
    _may(_IK, Sets.NUMERICS, "-ictk --indexer-cache-type-k", "KV type of the indexer", _CACHE_TYPE),
    _may(_IK, Sets.NUMERICS, "-ctk-first --cache-type-k-first", "K type of the first layers",
         _PER_LAYER),
    _may(_IK, Sets.NUMERICS, "-ctk-last --cache-type-k-last", "K type of the last layers",
         _PER_LAYER),
    _may(_IK, Sets.NUMERICS, "-ctv-first --cache-type-v-first", "V type of the first layers",
         _PER_LAYER),
    _may(_IK, Sets.NUMERICS, "-ctv-last --cache-type-v-last", "V type of the last layers",
         _PER_LAYER),
    # prompt
    _may(_LLAMA, Sets.PROMPT, "--jinja --no-jinja", "the model's own chat template is rendered"),
    _may(_IK, Sets.PROMPT, "--jinja", "the model's own chat template is rendered"),
)  # fmt: skip

OVERRIDE_KV = ("--override-kv", "-okv")
REACHES_BOTH = (
    "it reaches a target of the draft's architecture as well, and so changes the output; "
    "`experts:` of a quant or a ready draft says it in the draft's own file"
)

_REFUSED = (
    *_no(_BOTH, Harm.DOWNLOADS, "-mu --model-url", "-hfr --hf-repo", "-hff --hf-file",
         "-hft --hf-token", "--mmproj-url -mmu"),
    *_no(_LLAMA, Harm.DOWNLOADS, "-dr --docker-repo", "-hf", "-hfd --spec-draft-hf -hfrd"
         " --hf-repo-draft", "--mmproj-auto --no-mmproj --no-mmproj-auto", "--embd-gemma-default",
         "--fim-qwen-1.5b-default", "--fim-qwen-3b-default", "--fim-qwen-7b-default",
         "--fim-qwen-7b-spec", "--fim-qwen-14b-spec", "--fim-qwen-30b-default",
         "--gpt-oss-20b-default", "--gpt-oss-120b-default", "--vision-gemma-4b-default",
         "--vision-gemma-12b-default"),
    *_no(_BOTH, Harm.MODEL, "--lora", "--lora-scaled", "--control-vector",
         "--control-vector-scaled", "--control-vector-layer-range", "--lora-init-without-apply",
         "-mm --mmproj", "--no-mmproj-offload --mmproj-offload"),
    *_no(_BOTH, Harm.MODEL, " ".join(OVERRIDE_KV), why=REACHES_BOTH),
    *_no(_IK, Harm.MODEL, "-mtprot --mtp-requantize-output-tensor", "--mtmd-kq-type"),
    *_no(_LLAMA, Harm.MODEL, "--models-dir", "--models-preset", "--models-max",
         "--models-autoload --no-models-autoload", "-mmdev --mmproj-device",
         "--image-min-tokens", "--image-max-tokens", "--mtmd-batch-max-tokens", "--video-fps",
         "--video-timestamp-interval"),
    *_no(_IK, Harm.MODEL, "--image-min-tokens", "--image-max-tokens", "-tm --threads-mtmd"),
    *_no(_BOTH, Harm.READS, "-f --file", "--in-file", "-bf --binary-file", "--grammar-file",
         "--chat-template-file", "-lcs --lookup-cache-static", "--image --audio --video",
         "--ssl-key-file", "--ssl-cert-file", "--context-file", "--system-prompt-file -spf -sysf",
         "--positive-file", "--negative-file"),
    *_no(_LLAMA, Harm.READS, "-jf --json-schema-file", "--ui-config-file --webui-config-file",
         "--media-path"),
    *_no(_IK, Harm.READS, "--banned-string-file", "--expiring-logit-bias-file",
         "--cfg-negative-prompt-file", "--suffix-corpus", "--prompts", "--dataset", "--task"),
    *_no(_BOTH, Harm.WRITES, "-o --output --output-file", "-lcd --lookup-cache-dynamic",
         "--slot-save-path", "--save-all-logits --kl-divergence-base", "--prompt-cache",
         "--prompt-cache-all", "--prompt-cache-ro", "--save-frequency",
         "-ofreq --output-frequency"),
    *_no(_LLAMA, Harm.WRITES, "--logits-output-dir", "--save-logits"),
    *_no(_IK, Harm.WRITES, "--output-draft --draft-output --draft-output-file", "--sql-save-file",
         "-dkvc --dump-kv-cache"),
    *_no(_BOTH, Harm.LISTENS, "--path", "--ui-mcp-proxy --webui-mcp-proxy --no-ui-mcp-proxy"
         " --no-webui-mcp-proxy", "--ui --webui --no-ui --no-webui", "--metrics"),
    *_no(_LLAMA, Harm.LISTENS, "--reuse-port", "--cors-origins", "--cors-methods",
         "--cors-headers", "--cors-credentials --no-cors-credentials", "--api-prefix",
         "--ui-config --webui-config", "--props", "-a --alias", "--tags"),
    *_no(_IK, Harm.LISTENS, "-a --alias"),
    *_no(_LLAMA, Harm.CODE, "--tools", "--tools-runtime", "--mcp-servers-config",
         "--mcp-servers-json", "-ag --agent -no-ag --no-agent", "--video-ffmpeg-dir",
         "--server-base"),
    *_no(_IK, Harm.CODE, "--sqlite-zstd-ext-file"),
    *_no(_LLAMA, Harm.LOGS, "--log-jsonl --no-log-jsonl", "--log-prompts-dir", "--log-colors",
         "--log-prefix --no-log-prefix", "--log-timestamps --no-log-timestamps",
         "-v --verbose --log-verbose", "-lv --verbosity --log-verbosity"),
    *_no(_BOTH, Harm.LOGS, "--log-file", "--log-disable", "--simple-io", "--verbose-prompt"),
    *_no(_IK, Harm.LOGS, "-ld --logdir", "--log-test", "--log-enable", "--log-new",
         "--log-append", "--log-format", "-v --verbose", "--verbosity", "--minilog",
         "--no-display-prompt", "-co --color", "-ptc --print-token-count", "--output-details"),
    *_no(_BOTH, Harm.ENDS, "-h --help --usage", "--version"),
    *_no(_LLAMA, Harm.ENDS, "-cl --cache-list", "--completion-bash", "--list-devices",
         "--show-statistics"),
    *_no(_IK, Harm.ENDS, "-dr --dry-run"),
    *_no(_BOTH, Harm.MEASURES, "-s --seed", "--samplers", "--sampler-seq --sampling-seq",
         "--temp --temperature", "--top-k", "--top-p", "--min-p", "--top-nsigma --top-n-sigma",
         "--xtc-probability", "--xtc-threshold", "--typical --typical-p", "--repeat-last-n",
         "--repeat-penalty", "--presence-penalty", "--frequency-penalty", "--dry-multiplier",
         "--dry-base", "--dry-allowed-length", "--dry-penalty-last-n", "--dry-sequence-breaker",
         "--adaptive-target", "--adaptive-decay", "--dynatemp-range", "--dynatemp-exp",
         "--mirostat", "--mirostat-lr", "--mirostat-ent", "--ignore-eos", "-l --logit-bias",
         "--grammar", "-j --json-schema",
         why="it changes the sampling; `score.sampling:` says what can be said"),
    *_no(_IK, Harm.MEASURES, "--tfs", "--penalize-nl", "--adaptive-updt-w-cur", "--banned-n",
         "--allowlist-unicode-rule", "--allowlist-pieces", "--allowlist-keyword",
         "--allowlist-keyword-delay", "--cfg-negative-prompt", "--cfg-scale", "--spec-replace",
         why="it changes the sampling; `score.sampling:` says what can be said"),
    *_no(_BOTH, Harm.MEASURES, "-n --predict --n-predict", "-p --prompt", "--keep",
         "-e --escape --no-escape", "-r --reverse-prompt", "-sp --special", "--spm-infill",
         "--in-prefix", "--in-suffix", "--in-prefix-bos", "--pooling", "--attention",
         "--embedding --embeddings", "--embd-normalize", "--context-shift --no-context-shift",
         "--chat-template", "--chat-template-kwargs", "--reasoning-format", "-rea --reasoning",
         "--reasoning-budget", "--reasoning-budget-message", "--skip-chat-parsing"
         " --no-skip-chat-parsing", "--prefill-assistant --no-prefill-assistant",
         "-sps --slot-prompt-similarity", "-gan --grp-attn-n", "-gaw --grp-attn-w",
         "--hellaswag", "--hellaswag-tasks", "--winogrande", "--winogrande-tasks",
         "--multiple-choice", "--multiple-choice-tasks", "--kl-divergence", "--ppl-stride",
         "--ppl-output-type", "--ppl --no-ppl", "--chunk --from-chunk", "-to --timeout",
         "-i --interactive", "-if --interactive-first", "-cnv --conversation",
         "-mli --multiline-input", "--output-format", "-ns --sequences", "-pps", "-npp", "-ntg",
         "-npl"),
    *_no(_LLAMA, Harm.MEASURES, "--rerank --reranking", "--cache-prompt --no-cache-prompt",
         "--cache-reuse", "--reasoning-effort", "--reasoning-preserve --no-reasoning-preserve",
         "--sleep-idle-seconds", "--sse-ping-interval", "--parse-special", "--spec-synth-len",
         "--spec-synth-rates"),
    *_no(_IK, Harm.MEASURES, "-ptcall --parallel-tool-calls", "--peg", "--reasoning-tokens",
         "--send-done", "--all-logits --perplexity", "--embd-output-format", "--embd-separator",
         "--infill", "-ps --p-split", "-nrep --n-repetitions", "--output-tensor-name",
         "-crs --cache-ram-similarity", "-cram-n-min --cache-ram-n-min", "--repeat", "--retry",
         "--spec-autotune", "--chunk-size", "--chunk-separator", "--junk", "--pos", "--pca-batch",
         "--pca-iter", "--method", "--sweep-stride", "--sweep-memory",
         "-lsim --layer-similarity"),
    *_no(_IK, Harm.ENDS, "-fdn --fused-delta-net", why="the engine no longer uses it"),
    *_no(_IK, Harm.ENDS, "-rcache --rope-cache", why="the engine no longer uses it"),
    *_no(_LLAMA, Harm.ENDS, "--spec-draft-p-split --draft-p-split",
         why="the engine reads it and does nothing with it"),
)  # fmt: skip

# What cook or a key of the recipe says: two of them would fight, or a secret would show in a
# process list. The reason names the key.
_OURS = tuple(
    option
    for setter, listed in {
        "`source:`": ("-m --model", "-md --model-draft --spec-draft-model"),
        "cook itself": (
            *("--port", "--host", "--api-key", "--api-key-file", "--slots --no-slots"),
            *("-np --parallel", "-cram --cache-ram", "-fitt --fit-target"),
            *("-fitc --fit-ctx", "--offline", "--process-output", "--chunks"),
        ),
        "`score.context:`": ("-c --ctx-size", "-cd --ctx-size-draft"),
        "`score.draft:`": (
            *("--spec-type", "--draft --draft-max --draft-n", "--draft-min --draft-n-min"),
            *("--spec-draft-n-max", "--spec-draft-n-min", "--spec-draft-p-min --draft-p-min"),
            *("--draft-params -draft", "--spec-stage"),
            *("--spec-ngram-mod-n-min", "--spec-ngram-mod-n-max", "--spec-ngram-mod-n-match"),
            *("--spec-ngram-simple-size-n", "--spec-ngram-simple-size-m"),
            *("--spec-ngram-simple-min-hits", "--spec-ngram-map-k-size-n"),
            *("--spec-ngram-map-k-size-m", "--spec-ngram-map-k-min-hits"),
            *("--spec-ngram-map-k4v-size-n", "--spec-ngram-map-k4v-size-m"),
            *("--spec-ngram-map-k4v-min-hits", "--spec-ngram-size-n", "--spec-ngram-size-m"),
            *("--spec-ngram-min-hits", "--suffix-pattern-len", "--suffix-max-depth"),
            *("--spec-ckpt-mode --recurrent-ckpt-mode", "-mtp --multi-token-prediction"),
            *("-no-mtp --no-multi-token-prediction", "--spec-default"),
        ),
        "`n_gpu_layers:`": (
            "-ngl --n-gpu-layers --gpu-layers",
            "-ngld --n-gpu-layers-draft --gpu-layers-draft --spec-draft-ngl",
        ),
        "`override_tensor:`": (
            "-ot --override-tensor",
            "-otd --override-tensor-draft --spec-draft-override-tensor",
        ),
        "`cpu_moe:`": ("-cmoe --cpu-moe", "-cmoed --cpu-moe-draft --spec-draft-cpu-moe"),
        "`n_cpu_moe:`": (
            "-ncmoe --n-cpu-moe",
            "-ncmoed --n-cpu-moe-draft --spec-draft-n-cpu-moe --spec-draft-ncmoe",
        ),
        "`devices:`": ("-dev --device", "-devd --device-draft --spec-draft-device"),
        "`cache_type_k:`": (
            "-ctk --cache-type-k",
            "-ctkd --cache-type-k-draft --spec-draft-type-k",
        ),
        "`cache_type_v:`": (
            "-ctv --cache-type-v",
            "-ctvd --cache-type-v-draft --spec-draft-type-v",
        ),
        "`flash_attention:`": ("-fa --flash-attn", "-no-fa --no-flash-attn"),
        "`threads:`": ("-t --threads", "-td --threads-draft --spec-draft-threads"),
        "`threads_batch:`": (
            "-tb --threads-batch",
            "-tbd --threads-batch-draft --spec-draft-threads-batch",
        ),
        "`batch:`": ("-b --batch-size",),
        "`ubatch:`": ("-ub --ubatch-size",),
        "`rpc:`": ("--rpc",),
    }.items()
    for option in _no(_BOTH, Harm.OURS, *listed, why=setter)
) + _no(_LLAMA, Harm.OURS, "-fit --fit", why="cook itself")


def _table(flavour: Flavour) -> Mapping[str, Option]:
    listed = (*_HARMLESS, *_REFUSED, *_OURS)
    return MappingProxyType(
        {
            word: option
            for option in listed
            if flavour in option.flavours
            for word in option.spellings
        }
    )


OPTIONS: Mapping[Flavour, Mapping[str, Option]] = MappingProxyType(
    {flavour: _table(flavour) for flavour in Flavour}
)
"""Flavour -> spelling -> the option: all that was reviewed."""


@dataclass(frozen=True)
class Said:
    """A harmless flag as it was said; ``value`` is None for a switch."""

    option: Option
    flag: str
    value: str | None


@dataclass(frozen=True)
class Reading:
    """Raw flags, read: what is harmless, and what may not pass with its reason."""

    said: tuple[Said, ...]
    refusals: tuple[Refusal, ...]


def read_flags(
    words: Sequence[str],
    flavours: Sequence[Flavour] = tuple(Flavour),
    offered: Collection[str] | None = None,
    engine: str = "the engine",
) -> Reading:
    """Read raw flags against the table of ``flavours``; of several, one suffices.

    ``offered`` are the flags in the help of the tool that gets them, None where it is not known
    yet; ``engine`` names that tool in messages.
    """
    return _Reader(words, flavours, offered, engine).read()


def inherited(target: Sequence[str], own: Sequence[str]) -> tuple[str, ...]:
    """Raw flags of a draft with ``own`` beside a target with ``target``.

    Both servers start a draft from the target's parameters; only where tensors go is its own.
    """
    mine = {s.option.spellings for s in read_flags(own).said}
    words: list[str] = []
    for said in read_flags(target).said:
        if said.option.name != "--n-cpu-ffn" and said.option.spellings not in mine:
            words += [said.flag] if said.value is None else [said.flag, said.value]
    return (*words, *own)


class _Reader:
    def __init__(
        self,
        words: Sequence[str],
        flavours: Sequence[Flavour],
        offered: Collection[str] | None,
        engine: str,
    ) -> None:
        self._words, self._flavours = words, flavours
        self._offered, self._engine = offered, engine
        self._at = 0
        self._said: list[Said] = []
        self._refusals: list[Refusal] = []

    def read(self) -> Reading:
        while self._at < len(self._words):
            index = self._at
            self._at += 1
            flag = normal(self._words[index])
            harmless = tuple(o for o in self._options(flag) if o.sets is not None)
            if harmless:
                self._harmless(index, flag, harmless)
            else:
                self._refusals.append(self._refused(index, flag))
                while self._at < len(self._words) and not self._words[self._at].startswith("-"):
                    self._at += 1  # the refused flag's own values
        return Reading(tuple(self._said), tuple(self._refusals))

    def _options(self, flag: str) -> tuple[Option, ...]:
        tables = (OPTIONS[flavour] for flavour in self._flavours)
        return tuple(table[flag] for table in tables if flag in table)

    def _harmless(self, index: int, flag: str, options: tuple[Option, ...]) -> None:
        option, value = options[0], None
        if option.value is not None:
            value = self._value(index, flag, options)
            if value is None:
                return
        if any(said.option.spellings == option.spellings for said in self._said):
            self._refuse(index, f"`{flag}` is said twice", "keep one")
        elif self._offered is not None and flag not in self._offered and not option.unlisted:
            self._refusals.append(
                Refusal(
                    index,
                    f"{self._engine} has no {flag}",
                    "use another engine (--engine), or leave it out",
                    lacking=True,
                )
            )
        else:
            self._said.append(Said(option, flag, value))

    def _value(self, index: int, flag: str, options: tuple[Option, ...]) -> str | None:
        """The word after the flag, if it has the form that one of ``options`` takes."""
        forms = tuple(dict.fromkeys(o.value for o in options if o.value is not None))
        takes = f"`{flag}` takes {', or '.join(form.says for form in forms)}"
        if self._at >= len(self._words):
            self._refuse(index, f"{takes}, and nothing follows it")
            return None
        value = self._words[self._at]
        if any(form.fits(value) for form in forms):
            self._at += 1
            return value
        self._refuse(index, f"{takes}, not `{value}`")
        if not value.startswith("-"):
            self._at += 1
        return None

    def _refused(self, index: int, flag: str) -> Refusal:
        word = self._words[index]
        base, equals, _ = flag.partition("=")
        if base == UNSAFE_FLAG:
            message = f"`{word}` is your own word, for cook's command line: no file can say it"
            return Refusal(index, message, ours=True)
        for option in self._options(base):
            if option.harm is Harm.OURS:
                message = f"`{word}` is set by {option.why}, not in `extra`"
                return Refusal(index, message, ours=True)
            if option.harm is not None:
                return Refusal(index, f"`{word}` is refused in `extra`: {option.why}", _TRUST)
        if equals and self._options(base):
            hint = f"the engines read no `=`: write `{base}` and its value as two items"
            return Refusal(index, f"`{word}` is refused in `extra`: it is no flag", hint)
        if not flag.startswith("-"):
            why = "it is no flag, and no flag before it takes it"
            return Refusal(index, f"`{word}` is refused in `extra`: {why}", _TRUST)
        why = "it is not among the options that cook has reviewed"
        if close := self._begun(base):
            why += f" (`{close.name}`? {close.why})"
        return Refusal(index, f"`{word}` is refused in `extra`: {why}", _TRUST)

    def _begun(self, flag: str) -> Option | None:
        """The only option that begins like ``flag``."""
        tables = (OPTIONS[flavour] for flavour in self._flavours)
        begun = {o.spellings: o for t in tables for w, o in t.items() if w.startswith(flag)}
        return next(iter(begun.values())) if len(begun) == 1 and len(flag) > 3 else None

    def _refuse(self, index: int, message: str, hint: str | None = None) -> None:
        self._refusals.append(Refusal(index, message, hint))


_TRUST = f"{UNSAFE_FLAG} on the command line lets it through, for a recipe that you trust"


def normal(word: str) -> str:
    """``word`` as both engines' parsers see it: ``--model_url`` is ``--model-url``."""
    if not word.startswith("--"):
        return word
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value
