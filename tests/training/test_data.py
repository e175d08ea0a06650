"""Texts, token files, tokenizers and the loader."""

import numpy as np
import pytest

from blutrain import data
from blutrain.data import TokenLoader, as_tokens, evaluation_batches, read_tokens, write_tokens
from blutrain.errors import CheckpointError, DataError


def counting(n, vocab_size=1000):
    return as_tokens(np.arange(n) % vocab_size, vocab_size)


class TestTokenFile:
    @pytest.mark.parametrize(("vocab_size", "width"), [(256, 1), (257, 2), (65537, 4)])
    def test_round_trip_in_the_narrowest_width(self, tmp_path, vocab_size, width):
        tokens = as_tokens(np.array([0, 1, vocab_size - 1]), vocab_size)
        write_tokens(tmp_path / "t", tokens)
        again = read_tokens(tmp_path / "t")
        assert again.values.dtype.itemsize == width
        assert again.values.tolist() == [0, 1, vocab_size - 1]
        assert (again.vocab_size, again.checksum) == (vocab_size, tokens.checksum)
        assert (tmp_path / "t").stat().st_size == 64 + 3 * width

    def test_empty(self, tmp_path):
        write_tokens(tmp_path / "t", as_tokens(np.array([], dtype=np.int64), 10))
        assert len(read_tokens(tmp_path / "t")) == 0

    @pytest.mark.parametrize("bad", [-1, 10])
    def test_out_of_range(self, bad):
        with pytest.raises(DataError, match=r"must lie in 0\.\.9, got -?\d+ at position 2"):
            as_tokens(np.array([0, 9, bad]), 10)

    def test_not_integers(self):
        with pytest.raises(DataError, match=r"vector of integers, got float64\(3,\)"):
            as_tokens(np.zeros(3), 10)

    def test_missing(self, tmp_path):
        with pytest.raises(DataError, match="must be readable, got No such file"):
            read_tokens(tmp_path / "none")

    def test_foreign(self, tmp_path):
        (tmp_path / "t").write_bytes(b"PK\x03\x04" + bytes(100))
        with pytest.raises(DataError, match="must begin with b'BLUTOKEN', got b'PK"):
            read_tokens(tmp_path / "t")

    def test_other_version(self, tmp_path):
        write_tokens(tmp_path / "t", counting(10))
        raw = bytearray((tmp_path / "t").read_bytes())
        raw[8] = 9
        (tmp_path / "t").write_bytes(raw)
        with pytest.raises(DataError, match="must be of version 1, got version 9"):
            read_tokens(tmp_path / "t")

    @pytest.mark.parametrize("cut", [1, 30])
    def test_truncated(self, tmp_path, cut):
        write_tokens(tmp_path / "t", counting(100))
        raw = (tmp_path / "t").read_bytes()
        (tmp_path / "t").write_bytes(raw[:-cut])
        with pytest.raises(DataError, match="must be 264 bytes long, it is cut"):
            read_tokens(tmp_path / "t")

    def test_unwritable_keeps_what_was_there(self, tmp_path, monkeypatch):
        write_tokens(tmp_path / "t", counting(10))

        def full(descriptor):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("os.fsync", full)
        with pytest.raises(DataError, match="must be writable, got No space left on device"):
            write_tokens(tmp_path / "t", counting(20))
        assert len(read_tokens(tmp_path / "t")) == 10
        assert [p.name for p in tmp_path.iterdir()] == ["t"]


class TestLoader:
    def test_targets_are_one_later(self):
        inputs, targets = next(TokenLoader(counting(500), 4, 16))
        assert inputs.shape == targets.shape == (4, 16)
        assert inputs.dtype == np.int64
        assert (targets == inputs + 1).all()

    def test_an_epoch_visits_every_window_once(self):
        loader = TokenLoader(counting(500), 2, 16)
        starts = []
        while loader.epoch == 0:
            inputs, _ = next(loader)
            starts += inputs[:, 0].tolist() if loader.epoch == 0 else []
        assert len(starts) == len(set(starts)) == loader.windows == 30
        assert {(s - starts[0]) % 16 for s in starts} == {0}
        assert starts != sorted(starts)

    def test_epochs_and_seeds_differ(self):
        tokens = counting(5000)

        def first(seed, epoch):
            loader = TokenLoader(tokens, 2, 16, seed)
            for _ in range(epoch * (loader.windows // 2)):
                next(loader)
            return next(loader)[0].tolist()

        firsts = [first(0, 0), first(1, 0), first(0, 1), first(0, 2)]
        assert len({str(f) for f in firsts}) == 4
        assert first(1, 0) == firsts[1]

    def test_order_is_the_same_on_every_machine(self):
        """The order is part of what a checkpoint means: it must never change."""
        loader = TokenLoader(counting(1000), 4, 8, seed=7)
        assert next(loader)[0][:, 0].tolist() == [798, 334, 126, 822]

    @pytest.mark.parametrize("taken", [0, 1, 29, 30, 31, 100])
    def test_resumes_at_any_batch(self, taken):
        one, other = (TokenLoader(counting(500), 2, 8, seed=3) for _ in range(2))
        for _ in range(taken):
            next(one)
        other.load_state_dict(one.state_dict())
        for _ in range(70):
            assert all((a == b).all() for a, b in zip(next(one), next(other), strict=True))

    @pytest.mark.parametrize(
        ("other", "says"),
        [
            (TokenLoader(counting(501), 2, 8), "n_tokens 501 for 500"),
            (TokenLoader(as_tokens(np.zeros(500, int), 1000), 2, 8), "checksum"),
            (TokenLoader(counting(500), 3, 8), "batch_size 3 for 2"),
            (TokenLoader(counting(500), 2, 9), "block_size 9 for 8"),
            (TokenLoader(counting(500), 2, 8, 1), "seed 1 for 0"),
        ],
    )
    def test_refuses_another_texts_position(self, other, says):
        before = other.state_dict()
        with pytest.raises(CheckpointError, match=says):
            other.load_state_dict(TokenLoader(counting(500), 2, 8).state_dict())
        assert other.state_dict() == before

    def test_too_short(self):
        with pytest.raises(DataError, match="must hold 24 tokens for a batch, got 20"):
            TokenLoader(counting(20), 2, 8)

    def test_bad_sizes(self):
        with pytest.raises(DataError, match="must be at least 1, got \\(0, 8\\)"):
            TokenLoader(counting(20), 0, 8)

    def test_a_damaged_token_is_found_before_it_is_used(self):
        tokens = counting(100)
        tokens.values[:] = 60000
        loader = TokenLoader(tokens, 2, 8)
        with pytest.raises(DataError, match=r"must lie in 0\.\.999, got 60000 at position 0"):
            next(loader)
        assert loader.position == 0

    def test_evaluation_is_the_same_each_time_and_spread(self):
        tokens = counting(1000)
        batches = list(evaluation_batches(tokens, 4, 8, 5))
        again = list(evaluation_batches(tokens, 4, 8, 5))
        assert len(batches) == 5
        starts = np.concatenate([b[0][:, 0] for b in batches])
        assert starts.min() == 0
        assert starts.max() > 980
        assert len(set(starts.tolist())) == 20
        assert all((a[0] == b[0]).all() for a, b in zip(batches, again, strict=True))

    def test_evaluation_of_a_short_text(self):
        (batch,) = evaluation_batches(counting(20), 4, 8, 5)
        assert batch[0].shape == (2, 8)
        with pytest.raises(DataError, match="must hold more than 8 tokens"):
            list(evaluation_batches(counting(8), 4, 8, 5))


class TestCorpus:
    @pytest.fixture
    def text(self, tmp_path, monkeypatch):
        monkeypatch.setenv("BLUTRAIN_CACHE", str(tmp_path / "cache"))
        path = tmp_path / "poem.txt"
        path.write_text("Über allen Gipfeln ist Ruh. " * 100)
        return path

    def test_a_text_file(self, text):
        corpus = data.prepare(str(text))
        whole = np.concatenate([corpus.train.values, corpus.held_out.values]).tolist()
        assert corpus.tokenizer.decode(whole) == text.read_text()
        assert abs(len(corpus.held_out) / len(whole) - 0.1) < 0.01
        assert data.prepare(str(text)).folder == corpus.folder
        assert data.prepare(str(corpus.folder)).train.checksum == corpus.train.checksum

    def test_bpe(self, text):
        pytest.importorskip("tokenizers")
        corpus = data.prepare(str(text), "bpe", 300)
        assert corpus.vocab_size <= 300
        assert data.bytes_per_token(corpus) > 2
        tokens = corpus.tokenizer.encode("日本 x\n")
        assert corpus.tokenizer.decode(tokens.tolist()) == "日本 x\n"

    def test_bpe_without_the_library(self, text, monkeypatch):
        monkeypatch.setattr("blutrain.data.tokenizer.have_tokenizers", lambda: False)
        with pytest.raises(DataError, match=r"pip install 'blutrain\[data\]'"):
            data.prepare(str(text), "bpe")

    def test_unreadable(self, text, tmp_path):
        with pytest.raises(DataError, match="must be a readable text"):
            data.prepare(str(tmp_path / "none.txt"))
        text.write_bytes(b"\xff\xfe\xff")
        with pytest.raises(DataError, match="must be a readable text"):
            data.prepare(str(text))

    def test_a_cache_that_cannot_be_written(self, text, tmp_path, monkeypatch):
        monkeypatch.setenv("BLUTRAIN_CACHE", str(text))
        with pytest.raises(DataError, match="must be writable, got .*; free space, or choose"):
            data.prepare(str(text))

    def test_a_damaged_tokenizer(self, text):
        folder = data.prepare(str(text)).folder
        (folder / "tokenizer.json").write_text('{"version"')
        with pytest.raises(DataError, match=r"load_tokenizer: "):
            data.load_corpus(folder)

    def test_unknown_tokenizer(self, text):
        with pytest.raises(DataError, match="must be 'bytes' or 'bpe', got 'chars'"):
            data.prepare(str(text), "chars")

    def test_vocabularies_must_agree(self, text):
        corpus = data.prepare(str(text))
        write_tokens(corpus.folder / "heldout.tokens", counting(100))
        with pytest.raises(DataError, match=r"vocabularies must agree, got \[256, 1000\]"):
            data.load_corpus(corpus.folder)

    def test_standard_library(self):
        documents = data.standard_library()
        names = [d.name for d in documents]
        assert "argparse.py" in names
        assert "doc:builtins" in names
        assert len(names) == len(set(names))
        held_out = sum(len(d.text) for d in documents if d.held_out)
        assert 0.01 < held_out / sum(len(d.text) for d in documents) < 0.12

    def test_no_standard_library(self, tmp_path):
        with pytest.raises(DataError, match="must hold Python's .py files"):
            data.standard_library(tmp_path)

    def test_unigram_entropy(self):
        assert data.unigram_entropy(counting(1000)) == pytest.approx(np.log(1000))
        assert data.unigram_entropy(as_tokens(np.zeros(5, int), 3)) == 0
