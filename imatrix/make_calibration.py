"""Make ``calibration-v1.txt``: general text for an importance matrix, in shuffled chunks.

    mkdir dist && cd dist
    pip download --no-deps --no-binary :all: click==8.5.1 ...   (the table SOURCES below)
    python make_calibration.py --packages dist --output calibration-v1.txt

Every package archive is checked against its SHA-256 before anything is read, so the same
archives give the same bytes on any machine and any Python >= 3.11. Files are taken by kind
(code of several languages, prose, data) within a budget per kind, cut at line ends into chunks of
about 2,000 characters (some 500 tokens, a usual imatrix context), and shuffled with a fixed seed
by hashing, not by ``random``, whose shuffles are not promised to stay the same.

Left out: chunks that a machine wrote (long lines, few letters, mostly digits), the same text
twice, files that name a licence other than their package's, and every chunk which shares a run of
64 characters with a text given by ``--exclude`` (prompts and evaluation texts: what is scored must
not have been calibrated on).
"""

from __future__ import annotations

import argparse
import hashlib
import re
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

SEED = b"cook calibration v1"
CHUNK_CHARACTERS = 2_000
SHINGLE_CHARACTERS = 64
HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Source:
    """One archive from the Python package index, with what its metadata says of its licence."""

    archive: str
    licence: str
    sha256: str


SOURCES = (
    Source(
        "attrs-26.1.0.tar.gz",
        "MIT",
        "d03ceb89cb322a8fd706d4fb91940737b6642aa36998fe130a9bc96c985eff32",
    ),
    Source(
        "click-8.5.1.tar.gz",
        "BSD-3-Clause",
        "9bbfada76703fd1d784b83eea012e3e8c6a001a876543ef104fa56aaaeb072b4",
    ),
    Source(
        "fastapi-0.165.0.tar.gz",
        "MIT",
        "dd94d4128319c1e1d50535ab023ab698f850a4d2822f0e181747b46f4ff3c0ab",
    ),
    Source(
        "flask-3.1.3.tar.gz",
        "BSD-3-Clause",
        "0ef0e52b8a9cd932855379197dd8f94047b359ca0a78695144304cb45f87c9eb",
    ),
    Source(
        "gunicorn-27.0.1.tar.gz",
        "MIT",
        "b1514965361c8b7e8107a80aa2a92636878df1ccfac6dd204a676426e04d9e3e",
    ),
    Source(
        "humanize-4.17.0-py3-none-any.whl",
        "MIT",
        "02d0899527760efe18011944f882df4970943b4cdff7b5a0ba7fed43a576ef98",
    ),
    Source(
        "jinja2-3.1.6.tar.gz",
        "BSD-3-Clause",
        "0137fb05990d35f1275a587e9aee6d56da821fc83491a0fb838183be43f66d6d",
    ),
    Source(
        "joblib-1.6.0.tar.gz",
        "BSD-3-Clause",
        "2ccc96785b12046c08fd6d55839c12857831b54a3c1673ffadd2f04bfc4eda03",
    ),
    Source(
        "lark-1.3.1.tar.gz",
        "MIT",
        "b426a7a6d6d53189d318f2b6236ab5d6429eaf09259f1ca33eb716eed10d2905",
    ),
    Source(
        "markupsafe-3.0.4.tar.gz",
        "BSD-3-Clause",
        "2e9ad7dd851bf45fab9f75cbff4cb493fee9979e8d8c7c9c3ee119022518edd6",
    ),
    Source(
        "maturin-1.16.0.tar.gz",
        "MIT OR Apache-2.0",
        "13e69ca12542999d8c5467131de72a49bb76e4c284b9a45c5783df7c0fcb3a8a",
    ),
    Source(
        "mkdocs_material-9.8.1-py3-none-any.whl",
        "MIT",
        "2115af67ee680e1398bdd0ea02e517721e4bba88b342503a93f97ea8eb3de51c",
    ),
    Source(
        "pybind11-3.1.0.tar.gz",
        "BSD-3-Clause",
        "a1cc06b524ab3edca51f8ad3895f9c4fa20b8b19283173dff4ae781449dc9639",
    ),
    Source(
        "requests-2.34.2.tar.gz",
        "Apache-2.0",
        "f288924cae4e29463698d6d60bc6a4da69c89185ad1e0bcc4104f584e960b9ed",
    ),
    Source(
        "rich-15.0.0-py3-none-any.whl",
        "MIT",
        "33bd4ef74232fb73fe9279a257718407f169c09b78a87ad3d296f548e27de0bb",
    ),
    Source(
        "sqlite_utils-4.2.1.tar.gz",
        "Apache-2.0",
        "76114b6a5414714e6c70e5fa5c4781b301b590f6951b5da39c8cc60c21382ba1",
    ),
    Source(
        "sympy-1.14.0-py3-none-any.whl",
        "BSD-3-Clause",
        "e091cc3e99d2141a0ba2847328f5479b05d94a6635cb96148ccb3f34671bd8f5",
    ),
    Source(
        "tornado-6.6.1.tar.gz",
        "Apache-2.0",
        "28e6311402af59c8b02e3fa0f5e7d8eb465b25081381803b127d97e6a4395d5a",
    ),
    Source(
        "zstandard-0.25.0.tar.gz",
        "BSD-3-Clause",
        "7713e1179d162cf5c7906da876ec2ccb9c3a9dcbdffef0cc7f70c3667a205f0b",
    ),
)

# Kind of text -> (suffixes, budget in characters). The own text comes on top, whole.
BUDGETS: dict[str, tuple[tuple[str, ...], int]] = {
    "python": ((".py", ".pyi"), 130_000),
    "c": ((".c", ".h"), 55_000),
    "cpp": ((".cpp", ".hpp", ".pyx"), 25_000),
    "rust": ((".rs",), 55_000),
    "web": ((".js", ".ts", ".css", ".html", ".scss"), 35_000),
    "prose": ((".rst", ".md", ".txt"), 210_000),
    "data": ((".json", ".toml", ".yml", ".yaml", ".cfg", ".ini", ".lark"), 30_000),
    "shell": ((".sh", ".cmake", ".bat", ".j2"), 12_000),
}
# Code that the packages took from others, under licences of its own.
SKIPPED_PARTS = frozenset(
    {"vendor", "_vendor", "vendored", "third_party", "node_modules", "licenses", "zstd", "locale"}
    | {"lunr", "antlr", "autolev", "latex", "pygletplot"}
)
SKIPPED_NAMES = (
    *("license", "licence", "copying", "notice", "authors", "requirements", "sources"),
    *("findeigen3", "findpythonlibs", "pythoncapi_compat", "musllinux-policy", "manylinux-policy"),
)
# A file that names one of these may be under terms other than its package's: left out whole.
REFUSED_IN_FILE = re.compile(r"\b[al]?gpl|gnu general|creative commons|mozilla public")
# A chunk with one of these is a notice, or test data rather than text.
REFUSED_IN_CHUNK = ("copyright", "licensed under", "hereby granted", "-----begin", "eyj0", "spdx-")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--packages", type=Path, required=True, help="folder with the archives")
    parser.add_argument("--output", type=Path, default=HERE / "calibration-v1.txt")
    parser.add_argument("--own", type=Path, default=HERE / "own" / "text-v1.txt")
    parser.add_argument(
        "--exclude",
        type=Path,
        nargs="*",
        default=default_exclusions(),
        help="texts that calibration must not overlap with (default: cook's own, if present)",
    )
    args = parser.parse_args()
    try:
        text = make(args.packages, args.own, args.exclude)
    except (OSError, ValueError) as error:
        print(f"make_calibration: {error}", file=sys.stderr)
        return 1
    args.output.write_text(text, encoding="utf-8", newline="\n")
    data = args.output.read_bytes()
    print(f"{args.output}: {len(data)} bytes, sha256 {hashlib.sha256(data).hexdigest()}")
    return 0


def default_exclusions() -> list[Path]:
    """The texts that cook scores on, where this script lies in a checkout of cook."""
    cook = HERE.parent / "cook"
    texts = [cook / "prompts/default.jsonl", cook / "demo/data/prompts.jsonl"]
    texts.append(cook / "demo/data/evaluation.txt")
    return [path for path in texts if path.is_file()]


def make(packages: Path, own: Path, exclude: list[Path]) -> str:
    """The whole corpus. Raises ValueError for an archive that is not the expected one."""
    forbidden = set[str]()
    for path in exclude:
        forbidden |= shingles_of_file(path)
    chosen = list(cut(own.read_text(encoding="utf-8")))
    candidates: dict[str, list[tuple[int, bytes, str]]] = {kind: [] for kind in BUDGETS}
    for source in SOURCES:
        by_kind: dict[str, list[tuple[bytes, str]]] = {kind: [] for kind in BUDGETS}
        for name, text in members(packages, source):
            for number, chunk in enumerate(cut(text)):
                key = order(f"{source.archive}/{name}/{number}")
                by_kind[kind_of(name) or ""].append((key, chunk))
        # The archives take turns, so that the largest one does not fill the whole budget.
        for kind, chunks in by_kind.items():
            ranked = enumerate(sorted(chunks))
            candidates[kind] += [(turn, key, chunk) for turn, (key, chunk) in ranked]
    seen = set[str]()
    for kind, (_, budget) in BUDGETS.items():
        used = 0
        for _, _, chunk in sorted(candidates[kind]):
            if used >= budget:
                break
            runs = set(shingles(chunk))
            if not readable(chunk) or runs & forbidden:
                continue
            if len(runs & seen) > len(runs) // 4:  # mostly said before
                continue
            seen |= runs
            chosen.append(chunk)
            used += len(chunk)
    return "\n\n".join(sorted(chosen, key=order)) + "\n"


def members(packages: Path, source: Source) -> Iterator[tuple[str, str]]:
    """(path in the archive, text) of its text files, by path. Nothing is unpacked to disk."""
    path = packages / source.archive
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != source.sha256:
        raise ValueError(f"{path}: not the archive that calibration-v1 was made from (SHA-256)")
    found: dict[str, bytes] = {}
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            for name in wheel.namelist():
                if kind_of(name) is not None:
                    found[name] = wheel.read(name)
    else:
        with tarfile.open(path) as sdist:
            for member in sdist.getmembers():
                stream = sdist.extractfile(member) if member.isfile() else None
                if stream is not None and kind_of(member.name) is not None:
                    found[member.name] = stream.read()
    for name in sorted(found):
        try:
            text = found[name].decode("utf-8").replace("\r\n", "\n")
        except UnicodeDecodeError:
            continue
        if not REFUSED_IN_FILE.search(text.lower()):
            yield name, text


def kind_of(name: str) -> str | None:
    """Which budget a file counts against, or None for files that are not taken."""
    path = PurePosixPath(name.lower())
    if SKIPPED_PARTS & set(path.parts) or path.name.startswith(SKIPPED_NAMES):
        return None
    if ".min." in path.name or ".dist-info" in name or ".egg-info" in name:
        return None
    return next((kind for kind, (suffixes, _) in BUDGETS.items() if path.suffix in suffixes), None)


def cut(text: str) -> Iterator[str]:
    """Pieces of about 2,000 characters, which begin and end at line ends."""
    piece: list[str] = []
    size = 0
    for line in text.split("\n"):
        if size + len(line) > CHUNK_CHARACTERS and size > CHUNK_CHARACTERS // 2:
            yield "\n".join(piece).strip("\n")
            piece, size = [], 0
        piece.append(line)
        size += len(line) + 1
    last = "\n".join(piece).strip("\n")
    if last:
        yield last


def readable(chunk: str) -> bool:
    """False for what a machine wrote, fragments, and texts under terms of their own."""
    lines = chunk.split("\n")
    letters = sum(character.isalpha() for character in chunk)
    ink = sum(not character.isspace() for character in chunk)  # C is indented a lot
    lower = chunk.lower()
    return (
        len(chunk) >= CHUNK_CHARACTERS // 4
        and max(map(len, lines)) <= 800
        and letters >= 0.55 * ink
        and not any(word in lower for word in REFUSED_IN_CHUNK)
        and not any(ord(c) < 32 and c not in "\n\t" for c in chunk)
    )


def shingles(text: str) -> Iterator[str]:
    """Every run of 64 characters, with white space collapsed to single blanks."""
    flat = " ".join(text.split())
    for start in range(len(flat) - SHINGLE_CHARACTERS + 1):
        yield flat[start : start + SHINGLE_CHARACTERS]


def shingles_of_file(path: Path) -> set[str]:
    """Runs of a text, or of each ``prompt`` of a ``.jsonl`` file."""
    import json

    text = path.read_text(encoding="utf-8")
    if path.suffix != ".jsonl":
        return set(shingles(text))
    prompts = (json.loads(line)["prompt"] for line in text.split("\n") if line.strip())
    return {run for prompt in prompts for run in shingles(prompt)}


def order(text: str) -> bytes:
    """Sort key of a seeded shuffle."""
    return hashlib.sha256(SEED + text.encode("utf-8")).digest()


if __name__ == "__main__":
    sys.exit(main())
