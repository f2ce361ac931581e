"""A stand-in for the Hub on a loopback port, with a storage host next to it, and faults.

It speaks as much of the Hub's protocol as huggingface-hub 2.4 uses without Xet (read from that
client: ``hf_api.py``, ``file_download.py``, ``_commit_api.py``, ``lfs.py``; and from the
git-lfs batch API): repository info, trees, resolve with redirects to storage, ranges,
preupload, LFS batch with basic and multipart transfers and verification, commits as ndjson.
Storage is another port, as it is another host in life: no login may reach it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import socket
import struct
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

TOKEN = "hf_" + "S3cretS3cretS3cret"
SIGNATURE = "X-Sig=s1gned"
LARGE_BYTES = 1 << 16
"""Files from this size on are LFS (on the Hub 10 MB, and every .gguf by .gitattributes)."""


@dataclass
class Fault:
    """``kind`` for the next ``times`` requests whose "METHOD path" matches ``pattern``.

    Kinds: a status ("503", "429"); "reset" (before the answer); "lost" (the work is done, the
    answer never sent); "html" (a 502 error page); "truncate" and "cut" (half of the body, then a
    clean or a hard end); "stall" (half of it, then nothing); "corrupt" (a byte is wrong);
    "reset-upload" (while the body comes in).
    """

    pattern: str
    kind: str
    times: int = 1


@dataclass
class Repo:
    private: bool = False
    gated: bool = False
    commits: list[tuple[str, dict[str, bytes]]] = field(default_factory=list)

    def at(self, revision: str) -> tuple[str, dict[str, bytes]] | None:
        if revision in ("main", "HEAD") and self.commits:
            return self.commits[-1]
        return next((c for c in self.commits if c[0] == revision), None)


class Seen(NamedTuple):
    """One request as it came in."""

    method: str
    path: str
    headers: dict[str, str]


class HubServer:
    """The Hub's state; ``url`` is its endpoint."""

    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.blobs: dict[str, bytes] = {}
        self.parts: dict[tuple[str, int], bytes] = {}
        self.faults: list[Fault] = []
        self.injected: list[str] = []
        self.waits: list[float] = []
        """Seconds that the client and cook would have slept."""
        self.seen: list[Seen] = []
        self.part_bytes: int | None = None
        """Uploads above this size are multipart."""
        self.ranges = True
        self.lock = threading.RLock()
        self.closing = threading.Event()
        self._hub = _serve(self, _HubHandler)
        self._storage = _serve(self, _StorageHandler)
        self.url = f"http://127.0.0.1:{self._hub.server_port}"
        self.storage_url = f"http://127.0.0.1:{self._storage.server_port}"

    def close(self) -> None:
        self.closing.set()
        for server in (self._hub, self._storage):
            server.shutdown()
            server.server_close()

    def add(self, name: str, files: dict[str, bytes], **flags: Any) -> str:
        """A repository (``private``, ``gated``), or one more commit of it; the commit's hash."""
        repo = self.repos.setdefault(name, Repo(**flags))
        before = repo.commits[-1][1] if repo.commits else {}
        return self._commit(name, {**before, **files})

    def _commit(self, name: str, files: dict[str, bytes]) -> str:
        repo = self.repos[name]
        text = f"{name}{len(repo.commits)}{sorted((p, sha256(d)) for p, d in files.items())}"
        oid = hashlib.sha1(text.encode()).hexdigest()
        repo.commits.append((oid, files))
        self.blobs.update({sha256(d): d for d in files.values() if len(d) >= LARGE_BYTES})
        return oid

    def fault(self, pattern: str, kind: str, times: int = 1) -> None:
        self.faults.append(Fault(pattern, kind, times))

    def due(self, request: str) -> str | None:
        """The fault for ``request``, taken off the list."""
        with self.lock:
            for fault in self.faults:
                if fault.times > 0 and re.search(fault.pattern, request):
                    fault.times -= 1
                    self.injected.append(f"{fault.kind} at {request.split('?')[0]}")
                    return fault.kind
        return None

    def count(self, pattern: str) -> int:
        return sum(bool(re.search(pattern, f"{s.method} {s.path}")) for s in self.seen)


def _serve(hub: HubServer, handler: type[BaseHTTPRequestHandler]) -> ThreadingHTTPServer:
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("H", (handler,), {"hub": hub}))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    return server


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def git_oid(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    """What both hosts share: the log of requests, and faults."""

    hub: HubServer
    protocol_version = "HTTP/1.1"
    fault: str | None = None

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._any()

    do_HEAD = do_POST = do_PUT = do_GET

    def _any(self) -> None:
        self.body = None
        headers = {k.lower(): v for k, v in self.headers.items()}
        with self.hub.lock:
            self.hub.seen.append(Seen(self.command, self.path, headers))
        self.fault = self.hub.due(f"{self.command} {self.path}")
        if self.fault == "reset":
            return self._reset()
        if self.fault == "reset-upload":
            self.rfile.read(int(self.headers.get("Content-Length", "0")) // 2)
            return self._reset()
        self.content = self._read_body()
        if self.fault == "html":
            page = b"<html><body>502 Bad Gateway</body></html>"
            return self.send(502, page, {"Content-Type": "text/html"})
        if self.fault is not None and self.fault.isdigit():
            extra = {"Retry-After": "7"} if self.fault == "429" else {}
            return self.json({"error": "try later"}, int(self.fault), extra)
        self.route(urlsplit(self.path))
        return None

    def route(self, url: Any) -> None:
        raise NotImplementedError

    def _read_body(self) -> bytes:
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            data = b""
            while size := int(self.rfile.readline().split(b";")[0], 16):
                data += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return data
        return self.rfile.read(int(self.headers.get("Content-Length", "0")))

    def send(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        if self.fault == "lost":
            return self._reset()
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return None
        if self.fault == "corrupt" and body:
            middle = len(body) // 2
            body = body[:middle] + bytes([body[middle] ^ 1]) + body[middle + 1 :]
        if self.fault in ("truncate", "cut", "stall"):
            self.wfile.write(body[: len(body) // 2])
            self.wfile.flush()
            if self.fault == "stall":
                self.hub.closing.wait(60)
            self.close_connection = True
            return self._reset() if self.fault == "cut" else None
        self.wfile.write(body)
        return None

    def json(self, value: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        extra = {"Content-Type": "application/json", **(headers or {})}
        self.send(status, json.dumps(value).encode(), extra)

    def error(self, status: int, code: str, message: str) -> None:
        self.json({"error": message}, status, {"X-Error-Code": code, "X-Error-Message": message})

    def _reset(self) -> None:
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.rfile.close()
        self.connection.close()
        self.wfile = open("/dev/null", "wb")  # noqa: PTH123, SIM115 - what is left goes nowhere
        self.rfile = open("/dev/null", "rb")  # noqa: PTH123, SIM115


class _StorageHandler(_Handler):
    """Where the bytes of large files are: signed addresses, no logins."""

    def route(self, url: Any) -> None:
        if SIGNATURE not in url.query:
            return self.error(403, "", "no signature")
        kind, oid, *rest = url.path.strip("/").split("/")
        hub = self.hub
        if self.command == "PUT":
            data = self.content
            if self.fault == "corrupt":
                data = data[:-1] + bytes([data[-1] ^ 1])
            if kind == "part":
                hub.parts[oid, int(rest[0])] = data
                return self.send(200, headers={"ETag": f'"{sha256(data)}"'})
            hub.blobs[oid] = data
            return self.send(200)
        return self._blob(hub.blobs[oid])

    def _blob(self, data: bytes) -> None:
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if not wanted or not self.hub.ranges:
            return self.send(200, data)
        first, last = int(wanted[1]), int(wanted[2] or len(data) - 1)
        if first >= len(data):
            return self.send(416, headers={"Content-Range": f"bytes */{len(data)}"})
        part = data[first : last + 1]
        span = f"bytes {first}-{first + len(part) - 1}/{len(data)}"
        return self.send(206, part, {"Content-Range": span})


class _HubHandler(_Handler):
    """The Hub's own host."""

    def route(self, url: Any) -> None:
        path = unquote(url.path)
        if path == "/api/repos/create":
            return self._create()
        if path == "/api/validate-yaml":
            return self.json({"errors": [], "warnings": []})
        api = re.fullmatch(r"/api/models/([\w.-]+/[\w.-]+)(?:/(\w+)/(.+))?", path)
        if api:
            name, verb, rest = api[1], api[2] or "revision", api[3] or "main"
            if not self._allowed(name):
                return None
            return {
                "revision": self._info,
                "tree": self._tree,
                "preupload": self._preupload,
                "commit": self._commit,
            }[verb](name, rest)
        if found := re.fullmatch(r"/([\w.-]+/[\w.-]+)/resolve/([^/]+)/(.+)", path):
            return self._resolve(found[1], found[2], found[3])
        if found := re.fullmatch(r"/([\w.-]+/[\w.-]+)\.git/info/lfs/objects/batch", path):
            return self._batch(found[1])
        if found := re.fullmatch(r"/lfs/(verify|complete)/(\w+)", path):
            return self._finish(found[1], found[2])
        return self.error(404, "EntryNotFound", "nothing here")

    def _login(self) -> bool:
        return self.headers.get("Authorization") == f"Bearer {TOKEN}"

    def _allowed(self, name: str, write: bool = False) -> bool:
        repo = self.hub.repos.get(name)
        if repo is None or (repo.private and not self._login()):
            self.error(404 if self._login() else 401, "RepoNotFound", "Repository not found")
            return False
        if write and not self._login():
            self.error(401, "", "Invalid username or password.")
            return False
        return True

    def _create(self) -> None:
        asked = json.loads(self.content)
        if not self._login():
            return self.error(401, "", "Invalid username or password.")
        name = f"{asked['organization'] or 'cook'}/{asked['name']}"
        if asked["organization"] == "others":
            return self.error(403, "", "You don't have the rights to create a model there")
        answer = {"url": f"{self.hub.url}/{name}", "id": name}
        if name in self.hub.repos:
            return self.json({**answer, "error": "You already created this model repo"}, 409)
        self.hub.repos[name] = Repo(private=asked.get("visibility") == "private")
        self.hub._commit(name, {".gitattributes": b"*.gguf filter=lfs\n"})
        return self.json(answer)

    def _at(self, name: str, revision: str) -> tuple[str, dict[str, bytes]] | None:
        """The commit; where there is none that is answered."""
        if (at := self.hub.repos[name].at(revision)) is None:
            self.error(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return at

    def _info(self, name: str, revision: str) -> None:
        if (at := self._at(name, revision)) is not None:
            self.json({"id": name, "sha": at[0], "private": self.hub.repos[name].private})

    def _tree(self, name: str, revision: str) -> None:
        if (at := self._at(name, revision)) is None:
            return None
        entries: list[dict[str, Any]] = []
        for folder in sorted({p.rpartition("/")[0] for p in at[1]} - {""}):
            entries.append({"type": "directory", "path": folder, "oid": "0" * 40, "size": 0})
        entries += [_entry(path, data) for path, data in sorted(at[1].items())]
        return self.json(entries)

    def _resolve(self, name: str, revision: str, path: str) -> None:
        if not self._allowed(name):
            return None
        repo = self.hub.repos[name]
        if repo.gated and not self._login():
            return self.error(403, "GatedRepo", "Access to this model is restricted")
        if (at := self._at(name, revision)) is None:
            return None
        data = at[1].get(path)
        if data is None:
            return self.error(404, "EntryNotFound", "Entry not found")
        headers = {"X-Repo-Commit": at[0]}
        if len(data) < LARGE_BYTES:
            return self.send(200, data, {**headers, "ETag": f'"{git_oid(data)}"'})
        oid = sha256(data)
        linked = {"X-Linked-Etag": f'"{oid}"', "X-Linked-Size": str(len(data))}
        place = f"{self.hub.storage_url}/blob/{oid}?{SIGNATURE}"
        return self.send(302, b"", {**headers, **linked, "Location": place})

    def _preupload(self, name: str, revision: str) -> None:
        if not self._allowed(name, write=True):
            return None
        at = self.hub.repos[name].at(revision)
        here = at[1] if at else {}
        answer = []
        for file in json.loads(self.content)["files"]:
            old = here.get(file["path"])
            mode, name_of = ("lfs", sha256) if file["size"] >= LARGE_BYTES else ("regular", git_oid)
            found = {"path": file["path"], "uploadMode": mode, "shouldIgnore": False}
            answer.append(found | {"oid": None if old is None else name_of(old)})
        return self.json({"files": answer})

    def _batch(self, name: str) -> None:
        if not self._allowed(name, write=True):
            return None
        objects = [
            {"oid": oid, "size": size}
            | ({} if oid in self.hub.blobs else {"actions": self._actions(oid, size)})
            for oid, size in ((o["oid"], o["size"]) for o in json.loads(self.content)["objects"])
        ]
        return self.json({"transfer": "basic", "objects": objects})

    def _actions(self, oid: str, size: int) -> dict[str, Any]:
        hub = self.hub
        verify = {"href": f"{hub.url}/lfs/verify/{oid}"}
        if hub.part_bytes is None or size <= hub.part_bytes:
            place = f"{hub.storage_url}/blob/{oid}?{SIGNATURE}"
            return {"upload": {"href": place}, "verify": verify}
        count = -(-size // hub.part_bytes)
        header = {
            f"{n:05d}": f"{hub.storage_url}/part/{oid}/{n}?{SIGNATURE}" for n in range(1, count + 1)
        }
        header["chunk_size"] = str(hub.part_bytes)
        return {
            "upload": {"href": f"{hub.url}/lfs/complete/{oid}", "header": header},
            "verify": verify,
        }

    def _finish(self, verb: str, oid: str) -> None:
        hub = self.hub
        asked = json.loads(self.content)
        if verb == "complete":
            parts = [hub.parts.pop((oid, p["partNumber"])) for p in asked["parts"]]
            hub.blobs[oid] = b"".join(parts)
            return self.json({})
        data = hub.blobs.get(oid, b"")
        if sha256(data) != oid or len(data) != asked["size"]:
            hub.blobs.pop(oid, None)
            return self.error(422, "", "the object does not have the promised checksum")
        return self.json({})

    def _commit(self, name: str, revision: str) -> None:
        if not self._allowed(name, write=True):
            return None
        hub = self.hub
        before = hub.repos[name].at(revision)
        files = dict(before[1]) if before else {}
        for line in self.content.splitlines():
            item = json.loads(line)
            value = item["value"]
            if item["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif item["key"] == "lfsFile":
                data = hub.blobs.get(value["oid"])
                if data is None or sha256(data) != value["oid"]:
                    return self.error(400, "", "an LFS pointer points to a file that is not there")
                files[value["path"]] = data
        oid = hub._commit(name, files)
        url = f"{hub.url}/{name}/commit/{oid}"
        return self.json({"success": True, "commitOid": oid, "commitUrl": url})


def _entry(path: str, data: bytes) -> dict[str, Any]:
    entry: dict[str, Any] = {"type": "file", "path": path, "size": len(data), "oid": git_oid(data)}
    if len(data) >= LARGE_BYTES:
        entry["lfs"] = {"oid": sha256(data), "size": len(data), "pointerSize": 134}
    return entry
