"""Statistics under PyTorch's keys, and snapshots that PyTorch's own tools read."""

import pickle

import pytest

import blutrain as bt
from blutrain import memory
from blutrain.errors import OutOfMemoryError


@pytest.fixture
def history():
    memory.record_history()
    yield
    memory.record_history(False)


def keep_a_tensor():
    return bt.zeros(1000)


def events(*actions):
    return [e for e in memory.snapshot()["device_traces"][0] if e["action"] in actions]


def test_events_have_the_stack_of_who_asked(history):
    x = keep_a_tensor()
    (alloc,) = [e for e in events("alloc") if e["addr"] == x.storage.pointer]
    names = [frame["name"] for frame in alloc["frames"]]
    assert "keep_a_tensor" in names
    assert "test_events_have_the_stack_of_who_asked" in names
    assert not any("blutrain/memory/" in frame["filename"] for frame in alloc["frames"][:1])
    assert alloc["size"] == 4096
    pointer = x.storage.pointer
    del x
    ends = [e["action"] for e in events("free_requested", "free_completed") if e["addr"] == pointer]
    assert ends[-2:] == ["free_requested", "free_completed"]


def test_a_live_block_is_in_the_segments_with_its_stack(history):
    x = keep_a_tensor()
    blocks = [b for s in memory.snapshot()["segments"] for b in s["blocks"]]
    (block,) = [b for b in blocks if b["address"] == x.storage.pointer]
    assert (block["state"], block["size"], block["requested_size"]) == (
        "active_allocated", 4096, 4000,
    )  # fmt: skip
    assert "keep_a_tensor" in [frame["name"] for frame in block["frames"]]


def test_segments_and_growth_add_up(history):
    memory.empty_cache()
    block = memory.malloc(30 << 20)
    snapshot = memory.snapshot()
    assert sum(s["total_size"] for s in snapshot["segments"]) == memory.memory_reserved()
    assert sum(s["allocated_size"] for s in snapshot["segments"]) == memory.memory_allocated()
    for segment in snapshot["segments"]:
        assert sum(b["size"] for b in segment["blocks"]) == segment["total_size"]
    memory.free(block)
    memory.empty_cache()
    grown = sum(e["size"] for e in events("segment_map", "segment_alloc"))
    shrunk = sum(e["size"] for e in events("segment_unmap", "segment_free"))
    assert grown >= 30 << 20
    assert shrunk >= 30 << 20


def test_a_failed_request_is_noted(history):
    with pytest.raises(OutOfMemoryError):
        memory.malloc(1 << 50)
    (oom,) = events("oom")
    assert oom["size"] == 1 << 50
    assert 0 < oom["device_free"] < 1 << 50


def test_nothing_is_noted_unless_asked_for():
    keep_a_tensor()
    assert memory.snapshot()["device_traces"] == [[]]


def test_only_the_latest_events_are_kept():
    memory.record_history(max_entries=10)
    for _ in range(20):
        memory.free(memory.malloc(1000))
    assert len(memory.snapshot()["device_traces"][0]) == 10
    memory.record_history(False)


@pytest.mark.peer
def test_pytorchs_tools_read_a_dumped_snapshot(history, tmp_path):
    viz = pytest.importorskip("torch.cuda._memory_viz")
    kept = keep_a_tensor()
    memory.free(memory.malloc(3 << 20))
    with pytest.raises(OutOfMemoryError):
        memory.malloc(1 << 50)
    memory.dump_snapshot(tmp_path / "snapshot.pickle")
    snapshot = pickle.loads((tmp_path / "snapshot.pickle").read_bytes())
    assert f"segments: {len(snapshot['segments'])}" in viz.segsum(snapshot)
    # The place is counted from the segment if the history has its beginning, else from zero.
    assert ":4.0KiB]" in viz.trace(snapshot)
    assert "1.0PiB requested" in viz.trace(snapshot)
    assert len(viz.trace_plot(snapshot, plot_segments=True)) > 1000
    assert "keep_a_tensor" in viz.memory(snapshot, format_flamegraph=lambda lines: lines)
    assert "active_allocated" in viz.segments(snapshot, format_flamegraph=lambda lines: lines)
    assert len(viz.segment_plot(snapshot)) > 1000
    assert kept.shape == (1000,)


@pytest.mark.peer
def test_the_keys_are_pytorchs():
    """All of ours that have PyTorch's form are among those that PyTorch documents."""
    torch = pytest.importorskip("torch")
    documented = torch.cuda.memory_stats.__doc__
    for key in memory.memory_stats():
        family = key.split(".")[0]
        known = ("largest_free_block",)
        assert family in known or family in documented, key
