"""Artifacts on disk: a log of immutable snapshots and deltas, crash-safe, one owner.

    ROOT/lock                the owner's flock, with its pid
    ROOT/<artifact id, hex>/
        header               the signed header, durable before anything else
        pages                signed pages, appended as they come (uint32 BE length, then the encoded Signed)
        final                the signed final page, durable
        body                 segment i lies at i * segment_bytes; sparse while fetching, exact once complete
        complete             empty marker, written last

    FETCHING --finish--> COMPLETE --prune/retire--> gone         (verify: COMPLETE -> FETCHING when segments rotted)

Invariants: a name is a hash computed here, never a peer's text. `complete` exists only after body, pages and final are
on disk. What is not marked complete is hashed again after a restart, so a torn or rotten segment is merely missing.
Space is reserved by the header's size bound before the first byte. A failed write loses nothing that was there.
Every OSError leaves as StoreError, a full disk as DiskFullError. Several threads may call at once; calls for one
artifact come from one at a time.

It does not decide what to fetch or trust: callers hand over only what Manifest has accepted.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from aurora_p2p.artifact import retention
from aurora_p2p.artifact.folder import append_whole, disk, hash_body, read_manifest
from aurora_p2p.artifact.manifest import Manifest, artifact_id_of, manifest_hash_of
from aurora_p2p.errors import DiskFullError, ShapeError, StoreError
from aurora_p2p.local import faults
from aurora_p2p.local.faults import reach
from aurora_p2p.local.files import sync_folder, write_durably
from aurora_p2p.types import ArtifactId, ManifestHash
from aurora_p2p.wire.codec import decode, encode
from aurora_p2p.wire.fold import Source
from aurora_p2p.wire.manifest import FinalPage, Header
from aurora_p2p.wire.signed import Signed

FREE_MARGIN_BYTES = 64 * 2**20
"""Left free on the disk for everything else: databases, logs, other programs."""
_GONE = ".gone"
_NO_MANIFEST = ManifestHash(b"")


@dataclass(slots=True)
class _Entry:
    folder: Path
    header: Header
    stored: set[int] = field(default_factory=set)
    """Segments whose bytes are in the body."""
    pages: set[bytes] = field(default_factory=set)
    """Signatures of the pages on disk."""
    appended: int = 0
    final: FinalPage | None = None
    manifest: ManifestHash = _NO_MANIFEST
    complete_since: float | None = None
    pins: int = 0

    @property
    def reserved(self) -> int:
        """Bytes of quota it takes."""
        return self.header.size_bound if self.complete_since is None or self.final is None else self.final.length


class ArtifactStore:
    """The one owner of a folder of artifacts. Use as a context manager, or close()."""

    def __init__(self, root: Path, quota_bytes: int) -> None:
        """Raises StoreError when another process owns `root`, or it cannot be written."""
        self.root, self.quota_bytes = root, quota_bytes
        self._entries: dict[ArtifactId, _Entry] = {}
        self._books = threading.Lock()
        with disk(root):
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(root / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(self._lock, 0)
            os.pwrite(self._lock, str(os.getpid()).encode(), 0)
        except OSError as error:
            owner = os.pread(self._lock, 20, 0).decode(errors="replace")
            os.close(self._lock)
            if isinstance(error, BlockingIOError):
                raise StoreError(f"{root} is in use by pid {owner}", hint=f"stop it first: kill {owner}") from error
            raise StoreError(f"cannot lock {root}: {error.strerror}") from error

    def __enter__(self) -> ArtifactStore:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Give the folder up. Idempotent."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    @property
    def reserved_bytes(self) -> int:
        """Quota taken: the length of what is complete, the size bound of what is not."""
        return sum(entry.reserved for entry in self._entries.values())

    def load(self, *, now: float) -> list[tuple[Manifest, set[int]]]:
        """Everything on disk, by sequence number, with the segments held. Call once, before anything else.

        Complete artifacts are taken at their marker's word (`verify` hashes them); the others are hashed against their
        pages. Leftovers of a crash and artifacts whose header is damaged are removed.
        """
        found = []
        with disk(self.root):
            for folder in sorted(self.root.iterdir()):
                if folder.name.endswith(_GONE):
                    shutil.rmtree(folder)
                elif folder.is_dir() and len(folder.name) == 64:
                    found.append(self._restore(folder, now))
        return sorted((one for one in found if one), key=lambda one: one[0].header.seq)

    def create(self, header: Signed) -> ArtifactId:
        """Make room for an artifact and write its header. Known artifacts are left as they are.

        Raises StoreError when its size bound exceeds what quota or disk leave.
        """
        artifact, entry = artifact_id_of(header), self._new_entry(header)
        with self._books, disk(entry.folder):
            if artifact in self._entries:
                return artifact
            self._require_room(entry.header.size_bound)
            entry.folder.mkdir(mode=0o700, exist_ok=True)
            write_durably(entry.folder / "header", encode(header))
            (entry.folder / "body").touch(mode=0o600)
            sync_folder(self.root)
            reach("artifact.created")
            self._entries[artifact] = entry
        return artifact

    def put(self, artifact: ArtifactId, index: int, source: Path) -> None:
        """Move a verified segment from its spool file into the body. The file is kept when that fails."""
        with disk(source):
            segment = source.read_bytes()
        self.put_bytes(artifact, index, segment)
        source.unlink(missing_ok=True)

    def put_bytes(self, artifact: ArtifactId, index: int, segment: bytes) -> None:
        """The same for a verified segment that was made here."""
        entry = self._fetching(artifact)
        if len(segment) > entry.header.segment_bytes:
            raise ShapeError(
                f"segment {index} has {len(segment)} bytes, the artifact's have {entry.header.segment_bytes}"
            )
        reach("segment.storing")
        self._write(entry, index * entry.header.segment_bytes, segment)
        reach("segment.stored")
        entry.stored.add(index)

    def append(self, artifact: ArtifactId, piece: bytes | memoryview) -> int:
        """The publisher's way: the next bytes of the body. Returns its length so far."""
        entry = self._fetching(artifact)
        self._write(entry, entry.appended, piece)
        entry.appended += len(piece)
        return entry.appended

    def save_page(self, artifact: ArtifactId, page: Signed) -> None:
        """Keep a signed page; one already kept costs nothing."""
        entry = self._fetching(artifact)
        if page.signature in entry.pages:
            return
        record = encode(page)
        with disk(entry.folder):
            append_whole(entry.folder / "pages", len(record).to_bytes(4, "big") + record)
        reach("page.saved")
        entry.pages.add(page.signature)

    def save_final(self, artifact: ArtifactId, final: Signed) -> None:
        """Keep the signed final page, durably."""
        entry = self._fetching(artifact)
        write_durably(entry.folder / "final", encode(final))
        entry.final, entry.manifest = decode(final.body, FinalPage), manifest_hash_of(final)

    def finish(self, artifact: ArtifactId, *, now: float) -> None:
        """Mark complete, durably. Raises ShapeError when the final page or a segment is missing."""
        entry = self._fetching(artifact)
        if entry.final is None:
            raise ShapeError("save_final() before finish()")
        whole = entry.appended == entry.final.length or len(entry.stored) == entry.final.segments
        if not whole:
            raise ShapeError(f"{len(entry.stored)} of {entry.final.segments} segments are stored")
        with disk(entry.folder):
            with (entry.folder / "body").open("r+b") as body:
                body.truncate(entry.final.length)
                faults.disk("fsync", entry.folder / "body")
                os.fsync(body.fileno())
            if (entry.folder / "pages").exists():
                with (entry.folder / "pages").open("rb") as pages:
                    os.fsync(pages.fileno())
        reach("artifact.finishing")
        write_durably(entry.folder / "complete", b"")
        reach("artifact.finished")
        entry.complete_since = now

    def body_path(self, artifact: ArtifactId) -> Path:
        return self._entry(artifact).folder / "body"

    def is_complete(self, artifact: ArtifactId) -> bool:
        entry = self._entries.get(artifact)
        return entry is not None and entry.complete_since is not None

    def verify(self, artifact: ArtifactId) -> set[int]:
        """Hash every segment; returns those that are right. A complete artifact with a wrong one is fetching again."""
        entry = self._entry(artifact)
        with disk(entry.folder):
            manifest = read_manifest(entry.folder)
            if manifest is None:
                raise StoreError(f"the header in {entry.folder} is damaged", hint="retire the artifact and fetch anew")
            good = hash_body(manifest, entry.folder / "body")
            if manifest.final is None or len(good) < manifest.final.segments:
                (entry.folder / "complete").unlink(missing_ok=True)
                entry.complete_since, entry.stored = None, set(good)
                entry.appended = 0
        return good

    def pin(self, artifact: ArtifactId) -> None:
        """Keep it while something reads its body. Counted; unpin() once for each."""
        with self._books:
            self._entry(artifact).pins += 1

    def unpin(self, artifact: ArtifactId) -> None:
        with self._books:
            self._entry(artifact).pins -= 1

    def retire(self, artifact: ArtifactId) -> bool:
        """Delete an artifact, complete or not; False while it is pinned."""
        with self._books, disk(self.root):
            entry = self._entries.get(artifact)
            if entry is None or entry.pins > 0:
                return entry is None
            doomed = entry.folder.with_name(entry.folder.name + _GONE)
            entry.folder.rename(doomed)
            reach("artifact.retiring")
            del self._entries[artifact]
            shutil.rmtree(doomed)
        return True

    def prune(self, *, now: float) -> list[ArtifactId]:
        """Retire complete artifacts past retention (retention.py), but what is pinned; returns them."""
        return [one for one in retention.expired(self.residents(), now=now) if self.retire(one)]

    def make_room(self, needed: int) -> list[ArtifactId]:
        """Give up what the quota has no room for beside `needed` bytes: sources only, oldest first; returns them.

        Nothing is given up when that would not be enough.
        """
        short = needed - (self.quota_bytes - self.reserved_bytes)
        with self._books:
            pinned = {artifact for artifact, entry in self._entries.items() if entry.pins > 0}
        spare = [one for one in retention.spare(self.residents()) if one.artifact not in pinned]
        if short <= 0 or sum(one.length for one in spare) < short:
            return []
        given_up: list[ArtifactId] = []
        for one in spare:
            if short > 0 and self.retire(one.artifact):
                given_up.append(one.artifact)
                short -= one.length
        return given_up

    def residents(self) -> list[retention.Resident]:
        """What is complete."""
        with self._books:
            entries = list(self._entries.items())
        return [
            retention.Resident(
                artifact, entry.header, entry.manifest, entry.final.digest, entry.final.length, entry.complete_since
            )
            for artifact, entry in entries
            if entry.final is not None and entry.complete_since is not None
        ]

    def source(self, artifact: ArtifactId) -> Source:
        """A complete artifact as a fold or a load reads it: pin it meanwhile. Raises StoreError for any other."""
        entry = self._entry(artifact)
        if entry.final is None or entry.complete_since is None:
            raise StoreError(f"artifact {artifact.hex()[:16]} is not complete")
        return Source(entry.header, str(entry.folder / "body"), entry.final.digest)

    def held_bytes(self, artifact: ArtifactId) -> int:
        """How much of an artifact's body is here; 0 when the store does not know it."""
        entry = self._entries.get(artifact)
        return len(entry.stored) * entry.header.segment_bytes if entry is not None else 0

    def _entry(self, artifact: ArtifactId) -> _Entry:
        entry = self._entries.get(artifact)
        if entry is None:
            raise StoreError(f"artifact {artifact.hex()[:16]} is not in the store")
        return entry

    def _fetching(self, artifact: ArtifactId) -> _Entry:
        entry = self._entry(artifact)
        if entry.complete_since is not None:
            raise ShapeError(f"artifact {artifact.hex()[:16]} is complete and immutable")
        return entry

    def _new_entry(self, signed: Signed) -> _Entry:
        return _Entry(self.root / artifact_id_of(signed).hex(), decode(signed.body, Header))

    def _require_room(self, needed: int) -> None:
        left = self.quota_bytes - self.reserved_bytes
        if needed > left:
            raise StoreError(
                f"an artifact of up to {needed:,} bytes does not fit: {left:,} of {self.quota_bytes:,} bytes are left",
                hint="raise quota_gib in the settings",
            )
        free = shutil.disk_usage(self.root).free - FREE_MARGIN_BYTES
        if needed > free:
            raise DiskFullError(
                f"the disk of {self.root} has {max(free, 0):,} bytes to spare, {needed:,} are needed",
                hint="make room, or choose another --home",
            )

    def _write(self, entry: _Entry, offset: int, piece: bytes | memoryview) -> None:
        if offset < 0 or offset + len(piece) > entry.header.size_bound:
            raise ShapeError(
                f"bytes {offset} to {offset + len(piece)} pass the header's bound of {entry.header.size_bound}"
            )
        with disk(entry.folder), (entry.folder / "body").open("r+b", buffering=0) as body:
            body.seek(offset)
            faults.disk("write", entry.folder / "body", piece, body.write)
            view = memoryview(piece)
            while view:
                view = view[body.write(view) :]

    def _restore(self, folder: Path, now: float) -> tuple[Manifest, set[int]] | None:
        manifest = read_manifest(folder)
        if manifest is None:
            shutil.rmtree(folder)
            return None
        entry = self._new_entry(manifest.signed_header)
        entry.pages = {page.signature for page in manifest.pages()}
        entry.final = manifest.final
        if manifest.signed_final is not None:
            entry.manifest = manifest_hash_of(manifest.signed_final)
        body, marker = folder / "body", folder / "complete"
        body.touch(mode=0o600)
        final = manifest.final
        if final and manifest.pages_complete and marker.exists() and body.stat().st_size == final.length:
            entry.complete_since, entry.stored = now, set(range(final.segments))
        else:
            marker.unlink(missing_ok=True)
            entry.stored = hash_body(manifest, body)
        self._entries[manifest.artifact] = entry
        return manifest, set(entry.stored)
