"""Whether a downloaded file was signed, asked of gpg and the keys that this user trusts.

cook imports no key: one that lies next to what it signs proves nothing.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from cook.engines.process.supervisor import ask
from cook.errors import InputError, PrerequisiteError

UNSIGNED = "unsigned"
NOT_CHECKED = "signature not checked"
_VALID = re.compile(r"\[GNUPG:\] VALIDSIG (.+)")
_NO_KEY = re.compile(r"\[GNUPG:\] NO_PUBKEY (\w{8,40})")
_REFUSED = re.compile(r"\[GNUPG:\] (BADSIG|REVKEYSIG|EXPSIG)\b")


def signature_of(file: Path, signature: Path | None, key: str | None = None) -> str:
    """Who signed ``file``, or why that is not known, for people.

    ``key`` is the fingerprint of the one key that will do. Errors: InputError for a signature that
    is of other bytes, revoked, or by another key than ``key``; PrerequisiteError where ``key`` is
    asked for and gpg or the key is not at hand.
    """
    if signature is None:
        if key is not None:
            raise InputError(f"{file}: is not signed, and the key {key} is asked for")
        return UNSIGNED
    program = shutil.which("gpg")
    if program is None:
        return _unchecked(file, key, "gpg is not installed", "install gnupg")
    argv = (program, "--batch", "--no-tty", "--no-auto-key-retrieve", "--status-fd", "1")
    # What gpg says for people is in their language; its status lines are for programs.
    status = ask(*argv, "--verify", str(signature), str(file)).stdout_tail
    if refused := _REFUSED.search(status):
        why = {"BADSIG": "is of other bytes", "REVKEYSIG": "is by a revoked key"}
        reason = why.get(refused[1], "has expired")
        raise InputError(f"{file}: its signature {reason} ({signature.name})")
    if valid := _VALID.search(status):
        fields = valid[1].split()  # the key that signed, and at the end the one that it belongs to
        if key is not None and key.upper() not in (fields[0], fields[-1]):
            raise InputError(f"{file}: is signed by {fields[-1]}, not by the key {key}")
        return f"signed by {fields[-1]}"
    if missing := _NO_KEY.search(status):
        why_not = f"the key {missing[1]} is not in this user's keyring"
        return _unchecked(file, key, why_not, "import the publisher's key with `gpg --import`")
    return _unchecked(file, key, "gpg cannot read it", f"gpg --verify '{signature}' '{file}'")


def _unchecked(file: Path, key: str | None, reason: str, hint: str) -> str:
    if key is not None:
        raise PrerequisiteError(f"{file}: {NOT_CHECKED}: {reason}", hint=hint)
    return f"{NOT_CHECKED}: {reason}"
