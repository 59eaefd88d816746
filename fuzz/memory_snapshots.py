"""Writes the corpus of memory snapshots: python3 fuzz/memory_snapshots.py fuzz/corpus/memory_snapshot

They are made up, by the keys that torch 1.13 to 2.15 write. Tests know their numbers.
"""

import pathlib
import pickle
import sys
from typing import Any

MIB = 1 << 20
SMALL, LARGE = 0x7F0000000000, 0x7F0010000000
EPOCH = 1_767_225_600_000_000


def frame(filename: str, line: int, name: str) -> dict[str, Any]:
    """A line of a stack."""
    return {"filename": filename, "line": line, "name": name}


LINEAR = frame("/opt/venv/lib/python3.12/site-packages/torch/nn/modules/linear.py", 125, "forward")
MAIN = frame("/home/me/train.py", 40, "main")
MODEL = [LINEAR, frame("/home/me/model.py", 7, "forward"), MAIN]
LOSS = [
    frame("/build/c10/cuda/CUDACachingAllocator.cpp", 0, "malloc"),
    frame("??", 0, "_start"),
    frame("/home/me/train.py", 41, "loss"),
]


def new() -> dict[str, Any]:
    """What torch 2.15 has of two devices: an expandable segment, an out-of-memory error, a block that is older."""

    def entry(number: int, action: str, addr: int, size: int, frames: list[Any], **more: Any) -> dict[str, Any]:
        address = {"device_free": addr} if action == "oom" else {"addr": addr}
        return {
            "action": action,
            **address,
            "size": size,
            "stream": 0,
            "time_us": EPOCH + number * 1000,
            "frames": frames,
            **more,
        }

    def segment(device: int, address: int, size: int, kind: str, expandable: bool, blocks: list[Any]) -> dict[str, Any]:
        return {
            "device": device, "address": address, "total_size": size, "allocated_size": size, "active_size": size,
            "requested_size": size, "stream": 0, "segment_type": kind, "segment_pool_id": (0, 0), "is_expandable": expandable,
            "frames": MODEL, "blocks": blocks,
        }  # fmt: skip

    def block(address: int, size: int, requested: int, state: str, frames: list[Any]) -> dict[str, Any]:
        return {"address": address, "size": size, "requested_size": requested, "state": state, "frames": frames}

    segments = [
        segment(0, SMALL, 2 * MIB, "small", False, [
            block(SMALL, 512, 400, "active_allocated", [MAIN]),
            block(SMALL + 512, 1024, 1000, "active_pending_free", LOSS),
            block(SMALL + 1536, 2 * MIB - 1536, 0, "inactive", []),
        ]),
        segment(0, LARGE, 20 * MIB, "large", True, [block(LARGE, 20 * MIB, 20_000_000, "active_allocated", MODEL)]),
        segment(1, SMALL, 2 * MIB, "small", False, [block(SMALL, 2 * MIB, 2 * MIB, "active_allocated", [])]),
    ]  # fmt: skip
    trace = [
        entry(0, "segment_map", LARGE, 20 * MIB, MODEL),
        entry(1, "alloc", LARGE, 20_000_000, MODEL, user_metadata="epoch 1", compile_context="N/A"),
        entry(2, "alloc", SMALL + 1536, 5000, LOSS, pool_id=(0, 0)),
        entry(3, "oom", 1_000_000_000, 80 << 30, LOSS),
        entry(4, "free_requested", SMALL + 1536, 5000, []),
        entry(5, "free_completed", SMALL + 1536, 5000, []),
        entry(6, "free_requested", SMALL + 512, 1000, [MAIN]),
        entry(7, "snapshot", 0, 20_973_056, []),
    ]
    settings = {"expandable_segments": True, "roundup_power2_divisions": {"1": 0}, "garbage_collection_threshold": 0.0}
    return {
        "segments": segments, "device_traces": [trace, []], "allocator_settings": settings, "external_annotations": [{"name": "a"}],
        "host_segments": [], "host_traces": [],
    }  # fmt: skip


def old() -> dict[str, Any]:
    """What torch 2.0 has: blocks have a history, events no time."""
    owner = {"addr": SMALL, "real_size": 400, "frames": MODEL}
    segments = [
        {
            "device": 0, "address": SMALL, "total_size": 2 * MIB, "allocated_size": 512, "active_size": 512, "stream": 0,
            "segment_type": "small",
            "blocks": [
                {"size": 512, "state": "active_allocated", "history": [owner]},
                {"size": 2 * MIB - 512, "state": "inactive"},
            ],
        }
    ]  # fmt: skip
    trace = [
        {"action": "segment_alloc", "addr": SMALL, "size": 2 * MIB, "stream": 0, "frames": MODEL},
        {"action": "alloc", "addr": SMALL, "size": 400, "stream": 0, "frames": MODEL},
    ]
    return {"segments": segments, "device_traces": [trace]}


class Code:
    """Unpickled, it would run a command."""

    def __reduce__(self) -> tuple[Any, ...]:
        """What would be called."""
        import os

        return os.system, ("echo it ran > it_ran",)


def main(directory: pathlib.Path) -> None:
    """Writes each to a file of its own."""
    directory.mkdir(parents=True, exist_ok=True)
    for protocol in range(2, 6):
        (directory / f"protocol{protocol}").write_bytes(pickle.dumps(new(), protocol))
    (directory / "old").write_bytes(pickle.dumps(old(), 2))
    (directory / "segments").write_bytes(pickle.dumps(old()["segments"], 4))
    for protocol in (2, 4):
        with_code = new()
        with_code["device_traces"][0][2]["frames"] = Code()
        (directory / f"code{protocol}").write_bytes(pickle.dumps(with_code, protocol))


main(pathlib.Path(sys.argv[1]))
