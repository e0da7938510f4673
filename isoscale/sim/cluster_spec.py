"""What a cluster is made of, from one line or a file.

    V100*32+P100*16      one flat pool per kind: no node boundaries, any two devices are neighbours
    16x(T4*4)            16 nodes with 4 T4 each
    4x(V100*8)+8x(P100*2)+4x(T4*4)

Or the path of a node list: our own CSV (`kind,devices` and, if wanted, `node` and `count`), Alibaba's v2023
(`sn,gpu,model`), Philly's machine lists (`machineId,number of GPUs`), ElasticFlow's and Tiresias's cluster specs
(`num_switch,num_node_p_switch,num_gpu_p_node`). Lists without kinds have the kind `gpu`. Kinds here are names: the
simulator runs on devices that nobody has to have.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from isoscale import limits
from isoscale.errors import UserError, shortened
from isoscale.sim.traces.record import Row, table

__all__ = ["NodeSpec", "parse_cluster", "parse_devices", "read_nodes"]

_EXAMPLE = 'give, for example, "V100*32+T4*16" or "16x(T4*4)"'
_UNKNOWN_KIND = "gpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpec:
    """One machine, or one flat pool: devices of a kind that are each other's neighbours."""

    name: str
    kind: str
    devices: int


def parse_cluster(text: str, *, field: str = "--cluster") -> tuple[NodeSpec, ...]:
    """The nodes that a spec describes; a name of an existing file is read as a node list.

    >>> [(node.name, node.devices) for node in parse_cluster("2x(T4*4)+V100*8")]
    [('T4-0', 4), ('T4-1', 4), ('V100', 8)]
    """
    if len(text) > limits.MAX_SPEC_CHARS:
        raise UserError(field=field, value=text, problem="too long for a cluster in one line", remedy="give a file")
    if _is_file(text):
        return read_nodes(Path(text), field=field)
    if not re.search(r"[*+x(]", text) and ("/" in text or "." in text):
        raise UserError(field=field, value=text, problem="no such file", remedy=_EXAMPLE)
    nodes: list[NodeSpec] = []
    numbers: dict[str, int] = {}
    total = 0
    for count, group, is_pool in _terms(text, field):
        devices = parse_devices(group, field=field, whole=text)
        if not is_pool and len(devices) > 1:
            raise UserError(
                field=field, value=text, problem=f"({group}) mixes kinds in one node", remedy="give one kind a node"
            )
        _check_size(field, text, len(nodes) + count * len(devices), sum(size for _, size in devices) * count + total)
        total += sum(size for _, size in devices) * count
        for kind, size in devices:
            for _ in range(count):
                first = numbers.get(kind, 0)
                numbers[kind] = first + 1
                name = kind if is_pool and not first else f"{kind}-{first}"
                nodes.append(NodeSpec(name=name, kind=kind, devices=size))
    return tuple(nodes)


def parse_devices(text: str, *, field: str = "--devices", whole: str = "") -> tuple[tuple[str, int], ...]:
    """`KIND*COUNT+KIND*COUNT` as pairs, in order; a KIND alone counts once, a KIND twice is added up.

    Errors show `whole`, the cluster that this text is a part of.

    >>> parse_devices("V100*2+T4")
    (('V100', 2), ('T4', 1))
    """
    counts: dict[str, int] = {}
    if len(text) > limits.MAX_SPEC_CHARS:
        raise UserError(field=field, value=text, problem="too long for a set of devices", remedy="give fewer kinds")
    for part in text.split("+"):
        match = re.fullmatch(r"\s*([A-Za-z][\w.-]*)\s*(?:\*\s*([0-9]{1,30})\s*)?", part)
        count = int(match[2] or 1) if match else 0
        if not match or count < 1:
            raise UserError(
                field=field,
                value=whole or text,
                problem=f"{shortened(part.strip(), 60)!r} is not KIND*COUNT with a positive COUNT",
                remedy=_EXAMPLE if whole else 'give, for example, "V100*2+T4*3"',
            )
        counts[match[1]] = counts.get(match[1], 0) + count
    limits.within(sum(counts.values()), field, limits.CLUSTER_DEVICES, shown=whole or text)
    return tuple(counts.items())


def read_nodes(path: Path, *, field: str = "--cluster") -> tuple[NodeSpec, ...]:
    """The nodes with devices of a node list in one of the known formats."""
    header = next((row for row in table(path, ())), None)
    if header is None:
        raise UserError(field=field, value=path, problem="holds no node", remedy="give a node list with a header")
    for columns, read in _READERS:
        if all(header.has(column) for column in columns):
            nodes = tuple(_counted(field, path, (node for row in table(path, columns) for node in read(row))))
            if not nodes:
                raise UserError(field=field, value=path, problem="no node has a device", remedy="give another list")
            return nodes
    known = "; ".join(",".join(columns) for columns, _ in _READERS)
    raise UserError(
        field=field, value=path, problem="the header is of no known node list", remedy=f"give one with {known}"
    )


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except OSError:  # too long for a name
        return False


def _counted(field: str, path: Path, nodes: Iterable[NodeSpec]) -> Iterator[NodeSpec]:
    """Those with devices; refuses the first that is too many."""
    devices = 0
    for number, node in enumerate(nodes, 1):
        devices += node.devices
        _check_size(field, path, number, devices)
        if node.devices:
            yield node


def _check_size(field: str, value: object, nodes: int, devices: int) -> None:
    limits.within(devices, f"{field} devices", limits.CLUSTER_DEVICES, shown=value) if devices else None
    if nodes > limits.MAX_NODES:
        raise UserError(
            field=field, value=value, problem=f"{nodes} nodes", remedy=f"give at most {limits.MAX_NODES} nodes"
        )


def _own(row: Row) -> Iterator[NodeSpec]:
    kind, devices = row.text("kind"), row.count("devices", least=0)
    name = row.text("node", f"{kind}-line{row.line}")
    count = row.count("count", 1)
    for number in range(count):
        yield NodeSpec(name=f"{name}-{number}" if count > 1 else name, kind=kind, devices=devices)


def _alibaba(row: Row) -> Iterator[NodeSpec]:
    devices = row.count("gpu", least=0)
    if devices:
        yield NodeSpec(name=row.text("sn"), kind=row.text("model"), devices=devices)


def _philly(row: Row) -> Iterator[NodeSpec]:
    # The list tells memory, not the model: 12 GB and 24 GB devices are kinds of their own.
    memory = row.text("single GPU mem", "")
    yield NodeSpec(
        name=row.text("machineId"),
        kind=f"gpu-{memory.lower()}" if memory else _UNKNOWN_KIND,
        devices=row.count("number of GPUs", least=0),
    )


def _switches(row: Row) -> Iterator[NodeSpec]:
    for number in range(row.count("num_switch") * row.count("num_node_p_switch")):
        yield NodeSpec(name=f"node-{number}", kind=_UNKNOWN_KIND, devices=row.count("num_gpu_p_node"))


_READERS = (
    (("kind", "devices"), _own),
    (("sn", "gpu", "model"), _alibaba),
    (("machineId", "number of GPUs"), _philly),
    (("num_switch", "num_node_p_switch", "num_gpu_p_node"), _switches),
)


def _terms(text: str, field: str) -> Iterator[tuple[int, str, bool]]:
    """(how many nodes, devices of one, whether it is a flat pool) for each term of a sum."""
    # A + inside parentheses belongs to its term.
    for term in re.split(r"\+(?![^(]*\))", text):
        nodes = re.fullmatch(r"\s*(?:([0-9]{1,30})\s*x\s*)?\((.+)\)\s*|\s*([0-9]{1,30})\s*x\s*([^()]+)", term)
        if nodes is None:
            yield 1, term, True
            continue
        count = int(nodes[1] or nodes[3] or 1)
        if count < 1:
            raise UserError(field=field, value=text, problem=f"{term.strip()!r} is no node at all", remedy=_EXAMPLE)
        yield count, nodes[2] or nodes[4], False
