from __future__ import annotations

import struct
from collections import defaultdict
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from isoscale.core.encoding.codec import pack, packed_size, unpack

DTYPES = sorted(
    {d for d in vars(torch).values() if isinstance(d, torch.dtype) and "torch.q" not in str(d)}, key=lambda d: str(d)
)
# torch warns, once per process, that it does little with complex32.
pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf:UserWarning")


def random_bits(dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """Every bit pattern may appear: NaNs of every payload, denormals, values a bool never has."""
    out = torch.empty(shape, dtype=dtype)
    row = out.reshape(-1).view(torch.uint8)
    row.copy_(torch.randint(0, 2 if dtype == torch.bool else 256, row.shape, dtype=torch.uint8))
    return out


def memory(tensor: torch.Tensor) -> bytes:
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy().tobytes()


def same(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return (a.dtype, a.shape, a.stride(), memory(a)) == (b.dtype, b.shape, b.stride(), memory(b))
    if isinstance(a, float):
        return struct.pack("<d", a) == struct.pack("<d", b)
    if isinstance(a, dict):
        return same(list(a.items()), list(b.items()))
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


floats = st.integers(0, 2**64 - 1).map(lambda bits: struct.unpack("<d", struct.pack("<Q", bits))[0])
texts = st.text(st.characters(codec=None, categories=None, exclude_categories=()))
plain = (
    st.none()
    | st.booleans()
    | st.integers(-(2**80), 2**80)
    | st.sampled_from([2**2039 - 1, -(2**2039)])
    | floats
    | texts
    | st.binary()
)


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    torch.manual_seed(draw(st.integers(0, 1000)))
    return random_bits(draw(st.sampled_from(DTYPES)), tuple(shape)).permute(draw(st.permutations(range(len(shape)))))


keys = plain | st.tuples(plain, plain)
trees = st.recursive(
    plain | tensors(),
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(keys, inner),
    max_leaves=12,
)


@settings(deadline=None)
@given(trees)
def test_what_comes_back_is_what_went_in(tree: Any) -> None:
    block = pack(tree)
    assert (block.dtype, block.dim(), block.is_contiguous()) == (torch.uint8, 1, True)
    assert packed_size(tree) == block.numel()
    assert same(unpack(block), tree)
    assert same(unpack(block, copy=False), tree)


@settings(deadline=None)
@given(trees)
def test_equal_trees_give_equal_bytes_in_used_memory_too(tree: Any) -> None:
    into = torch.full((packed_size(tree) + 5,), 0xFF, dtype=torch.uint8)
    block = pack(tree, into=into)
    assert block.data_ptr() == into.data_ptr()
    assert torch.equal(block, pack(tree))
    assert into[-5:].tolist() == [0xFF] * 5


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (5, 7)], ids=str)
def test_every_dtype(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = random_bits(dtype, shape)
    assert same(unpack(pack(tensor)), tensor)


def test_state_of_an_optimizer() -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    state = optimizer.state_dict()
    assert list(state["state"]) == [0, 1]
    assert same(unpack(pack(state)), state)
    # A module's state is an OrderedDict, and what a Parameter adds to its tensor is not state.
    back = unpack(pack(dict(model.named_parameters()) | model.state_dict()))
    assert type(unpack(pack(model.state_dict()))) is dict
    assert not back["weight"].requires_grad
    assert memory(back["weight"]) == memory(model.weight.detach())


@pytest.mark.parametrize(
    ("tensor", "strides"),
    [
        (torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last), (60, 1, 15, 3)),
        (torch.randn(2, 1, 4, 5).to(memory_format=torch.channels_last), (20, 1, 5, 1)),
        (torch.randn(3, 4).t(), (1, 4)),
        (torch.randn(3, 4)[:, ::2], (2, 1)),
        (torch.randn(1, 3).expand(2, 3), (3, 1)),
        (torch.randn(6).as_strided((2, 2), (1, 1)), (2, 1)),
        (torch.randn(4, 4)[1:, 1:].t(), (3, 1)),
    ],
)
def test_strides_of_dense_tensors_are_kept(tensor: torch.Tensor, strides: tuple[int, ...]) -> None:
    back = unpack(pack(tensor))
    assert back.stride() == strides
    assert torch.equal(back, tensor)


def test_conjugates_and_negatives_that_torch_has_not_computed_yet() -> None:
    tensor = torch.tensor([1 + 2j, -0.0 + 3j])
    assert memory(unpack(pack(tensor.conj()))) == memory(tensor.conj().resolve_conj())
    assert memory(unpack(pack(tensor.conj().imag))) == memory(tensor.conj().imag.resolve_neg().contiguous())


@pytest.mark.parametrize("copy", [True, False])
def test_tensors_are_aligned_and_writable(copy: bool) -> None:
    block = pack([torch.ones(3), torch.ones(5, dtype=torch.int8), torch.ones(2, dtype=torch.complex128)])
    before = block.clone()
    for tensor in unpack(block, copy=copy):
        assert tensor.data_ptr() % 64 == 0
        assert not tensor._is_view()
        tensor.zero_()
    assert torch.equal(block, before) == copy


@settings(deadline=None)
@given(trees)
def test_what_is_told_to_be_there_does_not_change_any_more(tree: Any) -> None:
    into = torch.empty(packed_size(tree), dtype=torch.uint8)
    seen: list[tuple[int, bytes]] = []
    block = pack(tree, into=into, told=lambda end: seen.append((end, bytes(into[:end].tolist()))))
    assert [end for end, _ in seen] == sorted(end for end, _ in seen)
    for end, data in seen:
        assert bytes(block[:end].tolist()) == data


def test_memory_that_is_not_aligned_is_not_used() -> None:
    tree = {"x": torch.randn(9)}
    room = torch.zeros(packed_size(tree) + 64, dtype=torch.uint8)
    block = room[1 : 1 + packed_size(tree)]
    block.copy_(pack(tree))
    assert unpack(block, copy=False)["x"].data_ptr() % 64 == 0
    assert same(unpack(block, copy=False), tree)
    assert pack(tree, into=room[1:]).data_ptr() % 64 == 0


def test_each_tensor_owns_its_memory() -> None:
    """Views of one large block would be saved with all of it."""
    small, _ = unpack(pack([torch.ones(2), torch.ones(1000)]))
    assert small.untyped_storage().nbytes() == 8


@pytest.mark.parametrize(
    ("tree", "place"),
    [
        ({"a": [object()]}, r"state\['a'\]\[0\]: cannot hold a builtins.object"),
        ({"a": {1, 2}}, r"state\['a'\]: cannot hold a builtins.set"),
        ([torch.float32], "torch.dtype"),
        ([msgspec.UNSET], "UnsetType"),
        ({"w": torch.eye(3).to_sparse()}, "torch.sparse_coo tensor"),
        ({"w": torch.empty(3, device="meta")}, "meta device"),
        ([torch.tensor(3.0).numpy()[()]], "numpy.float32"),
        ({torch.ones(1): 1}, "a tensor is no key"),
        ({"n": 2**2040}, r"state\['n'\]: cannot hold an int of 256 bytes"),
        (defaultdict(int), "collections.defaultdict"),
    ],
)
def test_what_cannot_be_held_is_named_with_its_place(tree: Any, place: str) -> None:
    with pytest.raises(TypeError, match=place):
        pack(tree)


@settings(max_examples=300, deadline=None)
@given(tree=trees, data=st.data())
def test_damage_is_a_value_error_or_another_value(tree: Any, data: st.DataObject) -> None:
    block = pack(tree)
    damaged = block.clone()
    at = data.draw(st.integers(0, block.numel() - 1))
    damaged[at] ^= data.draw(st.integers(1, 255))
    cut = block[: data.draw(st.integers(0, block.numel() - 1))]
    with pytest.raises(ValueError):
        unpack(cut)
    with pytest.raises(ValueError):
        unpack(torch.cat([block, torch.zeros(1, dtype=torch.uint8)]))
    try:
        unpack(damaged)
    except ValueError:
        return
    assert at >= 24  # the prefix is checked; a flipped bit inside a value is for a digest to find


def with_header(node: Any, tail: int = 0) -> torch.Tensor:
    header = node if isinstance(node, bytes) else msgspec.msgpack.encode(node)
    size = 24 + len(header) + tail
    return torch.frombuffer(
        bytearray(struct.pack("<8sQQ", b"isostat1", len(header), size) + header + bytes(tail)), dtype=torch.uint8
    )


@pytest.mark.parametrize(
    "node",
    [
        [],
        [6],
        [True, 1],
        ["0"],
        [0, 1],
        [0, [1], 2],
        [0, 1, 2, True, 3],
        {"a": 1},
        [4, "x"],
        [4],
        [5, b"\xff"],
        [3, "float32", [2], [1]],
        [3, "qint8", [0], [1]],
        [3, "os.system", [0], [1]],
        [3, "float32", [0], [1], 1],
        [3, "float32", [2], []],
        [3, "float32", [-1], [1]],
        [3, "float32", [True], [1]],
        [3, "float32", 0, 0],
        [3, "float32", [2, 2], [1, 1]],
        [3, "float32", [0, 2**62, 2**62], [1, 1, 1]],
        [3, "uint8", [2**62], [1]],
        [3, [], [0], [1]],
        msgspec.Raw(b"\xdd\xff\xff\xff\xff"),
        msgspec.msgpack.Ext(1, b"x"),
        b"\x91" * 100_000 + b"\x01",
        b"\x01\x01",
        b"",
    ],
    ids=lambda node: repr(node).partition(" at 0x")[0][:40],
)
def test_broken_headers_are_value_errors(node: Any) -> None:
    with pytest.raises(ValueError, match=r"damaged|utf-8"):
        unpack(with_header(node))


@pytest.mark.parametrize(
    "block",
    [torch.zeros(100, dtype=torch.uint8), torch.zeros(3, dtype=torch.uint8), torch.zeros(4), torch.zeros(4, 8).byte()],
)
def test_what_is_not_a_packed_state_is_refused(block: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="packed state"):
        unpack(block)
