"""The pieces of a transformers model: every rank's share, read and written, over real process groups."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from swift_diloco.core.errors import UserError
from swift_diloco.core.layout.fragments import plan_fragments
from swift_diloco.core.layout.pieces import PieceMap
from swift_diloco.core.layout.tensors import Layout, make_layout
from swift_diloco.island.ranks.torch_group import LoneRank, ranks_of_this_job
from swift_diloco.trainers.hf import pieces as pieces_module
from swift_diloco.trainers.hf.pieces import HfPieces, buckets, trained_parameters
from tests.trainers.megatron.ranks import run_ranks


def model(dtype: torch.dtype = torch.float32) -> torch.nn.Sequential:
    torch.manual_seed(3)
    network = torch.nn.Sequential(torch.nn.Linear(6, 10), torch.nn.Linear(10, 3, bias=False), torch.nn.Linear(3, 2))
    network[2].requires_grad_(False)
    return network.to(dtype)


def bound(pieces: HfPieces, fragments: int = 2) -> tuple[Layout, PieceMap]:
    layout = make_layout(pieces.specs())
    where = PieceMap(layout, plan_fragments(layout, fragments, "binpack"), pieces.boxes(layout))
    pieces.bind(where)
    return layout, where


def test_only_what_is_trained_is_in_the_layout() -> None:
    layout, _ = bound(HfPieces(model(), LoneRank()))
    assert [spec.name for spec in layout.tensors] == ["0.bias", "0.weight", "1.weight"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_lone_rank_reads_and_writes_every_element_in_stream_order(dtype: torch.dtype) -> None:
    network = model(dtype)
    pieces = HfPieces(network, LoneRank())
    layout, where = bound(pieces)
    named = dict(network.named_parameters())
    new = {f: torch.randn(where.elements(f)) for f in range(2)}
    pieces.write(new)
    pieces.spread(range(2))
    for fragment, tensors in enumerate(where.plan.fragments):
        out = torch.empty(where.elements(fragment))
        pieces.read(fragment, out)
        assert out.equal(new[fragment])
        flat = torch.cat([named[layout.tensors[number].name].detach().view(-1) for number in tensors])
        assert flat.equal(new[fragment].to(dtype))


def _installed(rank: int) -> list[float]:
    """Each rank writes a number of its own over its share, and reads it; the rank's model afterwards."""
    network = model(torch.bfloat16)
    pieces = HfPieces(network, ranks_of_this_job())
    _, where = bound(pieces)
    value = rank + 1 + 2.0**-12  # not a bf16 number
    pieces.write({f: torch.full((where.elements(f),), value) for f in range(2)})
    pieces.spread(range(2))
    out = torch.empty(where.elements(0))
    pieces.read(0, out)
    assert bool((out == value).all())
    return [float(x) for p in trained_parameters(network).values() for x in p.detach().view(-1)]


@pytest.mark.net
def test_all_ranks_end_with_the_same_model_and_each_owner_with_its_exact_values(tmp_path: Path) -> None:
    first, *others = run_ranks(3, tmp_path, _installed)
    assert isinstance(first, list)
    assert others == [first, first]
    counts = [first.count(float(rank + 1)) for rank in range(3)]
    assert sum(counts) == len(first) == 6 * 10 + 10 + 30
    assert max(counts) - min(counts) <= 12, "the shares are even"


def test_small_ranges_travel_together_and_large_ones_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces_module, "BUCKET_BYTES", 64)
    a, b, c, d = torch.zeros(8), torch.zeros(8), torch.zeros(100), torch.zeros(4, dtype=torch.bfloat16)
    assert [[len(v) for v in bucket] for bucket in buckets([a, b, a, c, d, d])] == [[8, 8], [8], [100], [4, 4]]
    assert buckets([]) == []


def test_weights_that_cannot_travel_exactly_are_named() -> None:
    with pytest.raises(UserError, match="parameter '0.weight' is float16; islands train float32 and bfloat16"):
        trained_parameters(model(torch.float16))
    strided = model()
    strided[0].weight = torch.nn.Parameter(torch.zeros(6, 10).t())
    with pytest.raises(UserError, match="parameter '0.weight' is not contiguous"):
        trained_parameters(strided)


def test_a_stream_of_the_wrong_size_is_an_error_of_ours() -> None:
    pieces = HfPieces(model(), LoneRank())
    bound(pieces)
    with pytest.raises(ValueError, match="expected float32 of"):
        pieces.write({0: torch.zeros(3)})
