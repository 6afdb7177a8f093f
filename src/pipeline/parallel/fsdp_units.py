"""The units of fully sharded training: which modules form one, and how its parameters lie in flat buffers."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import Parameter

from pipeline.compat.torch_private import has_gradient_hooks, parameters_of
from pipeline.formulas.fsdp import flat_layout
from pipeline.parallel.replicas import mark_as_shard

Rule = Callable[[nn.Module], bool]

HOOKS_NOT_CALLED = "has a gradient hook, which FSDP would not call: remove it"


class Place(NamedTuple):
    """Where a module looks up a parameter (its dictionary and the name), and the two values it alternates between."""

    owner: dict[str, Any]
    name: str
    shard: Parameter
    full: Parameter


class Flat:
    """Parameters of one unit and kind (dtype, trained or frozen) in one buffer, of which each rank keeps a piece.

    piece: this rank's part of the buffer, of shape (layout.piece,). shards: 1-D views into it, one per parameter; empty
    if the parameter lies on other ranks. fulls: the parameters in their shapes and in the compute dtype, in a buffer
    filled by `fill`, if any, and then by the collective `gather`.
    """

    def __init__(self, names: list[str], parameters: list[Parameter], compute_dtype: torch.dtype | None):
        first, rank = parameters[0], dist.get_rank()
        self.names, self.is_trained, self.shapes = names, first.requires_grad, [entry.shape for entry in parameters]
        self.layout = flat_layout([entry.numel() for entry in parameters], dist.get_world_size())
        self.compute_dtype = compute_dtype if compute_dtype and first.is_floating_point() else first.dtype
        self.piece = torch.zeros(self.layout.piece, dtype=first.dtype, device=first.device)
        self._sizes = self._split_sizes(rank)
        self._whole_sizes = self.layout.sizes_and_gaps()
        self.shards: list[Parameter] = []
        for index, (parameter, view) in enumerate(zip(parameters, self.split(self.piece), strict=True)):
            begin, end = self.layout.own(index, rank)
            view.copy_(parameter.detach().reshape(-1)[begin:end])
            self.shards.append(Parameter(view, requires_grad=self.is_trained))
            mark_as_shard(self.shards[-1])
        self.fulls: list[Parameter] = []
        self.fill: Callable[[], Tensor] | None = None
        self.gather: Callable[..., Any]

    @property
    def nbytes(self) -> int:
        """The bytes of all parameters in the compute dtype, including padding."""
        return self.layout.elements * self.compute_dtype.itemsize

    def split(self, piece: Tensor) -> list[Tensor]:
        """Return views of a piece, one for the part of each parameter."""
        return list(piece.split(self._sizes)[1::2])

    def check_unchanged(self) -> None:
        """Raise RuntimeError if shards were converted, moved, frozen or unfrozen, or have gradient hooks."""
        moved = self.shards[0].untyped_storage().data_ptr() != self.piece.untyped_storage().data_ptr()
        for name, shard in zip(self.names, self.shards, strict=True):
            if moved or shard.requires_grad != self.is_trained:
                raise RuntimeError(f"{name} was converted, moved, frozen or unfrozen after wrapping: do so before")
            if has_gradient_hooks(shard):
                raise RuntimeError(f"{name} {HOOKS_NOT_CALLED}")

    def split_whole(self, whole: Tensor) -> list[Tensor]:
        """Return a view of each parameter in a full buffer, in its shape."""
        parts = whole.split(self._whole_sizes)[::2]
        return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def place_fulls(self, buffer: Tensor) -> None:
        """Create `fulls` in a buffer of `nbytes` bytes."""
        # `.data` gives each its own version counter; otherwise autograd would take a gather into the buffer for an
        # in-place change of weights that it has saved.
        whole = buffer.view(self.compute_dtype)
        self.fulls = [Parameter(view.data, requires_grad=self.is_trained) for view in self.split_whole(whole)]
        if self.compute_dtype == self.piece.dtype:
            self.fill, self.gather = None, partial(dist.all_gather_into_tensor, whole, self.piece)
        else:  # in place: the rank sends its own part of the buffer
            own = whole.chunk(dist.get_world_size())[dist.get_rank()]
            self.fill, self.gather = partial(own.copy_, self.piece), partial(dist.all_gather_into_tensor, whole, own)

    def _split_sizes(self, rank: int) -> list[int]:
        """Return the lengths to split a piece by: a gap, the first parameter's part, a gap, the second's, ..., rest."""
        sizes, end_before = [], 0
        for index, offset in enumerate(self.layout.offsets):
            begin, end = self.layout.own(index, rank)
            start = min(max(offset + begin - self.layout.piece * rank, end_before), self.layout.piece)
            sizes += [start - end_before, end - begin]
            end_before = start + end - begin
        return [*sizes, self.layout.piece - end_before]


@dataclass(eq=False)
class Group:
    """Modules that share parameters, and the parameters of theirs to shard (an ordered set)."""

    modules: list[nn.Module]
    members: dict[Parameter, None]


class Unit:
    """Parameters that are gathered and freed together, and the modules that use them.

    Construction replaces the parameters in the modules by shards. forwards: for each forward pass of the modules that
    is in progress, the number that autograd's next node had when it began. awaited: the same numbers, for forward
    passes since the last synchronisation of gradients whose backward pass has not begun. went_backward: whether the
    unit was gathered for a backward pass whose gradients have not been sent yet.
    """

    def __init__(self, group: Group, names: Mapping[Parameter, str], compute_dtype: torch.dtype | None):
        self.modules, self.forwards, self.awaited, self.went_backward = group.modules, list[int](), set[int](), False
        inside = dict.fromkeys(inner for module in group.modules for inner in module.modules())
        self._owners = [parameters_of(module) for module in inside]
        self._places: list[Place] = []
        self._shows_full = False
        self.flats: list[Flat] = []
        for parameters in _by_kind(group.members):
            self.flats.append(Flat([names[parameter] for parameter in parameters], parameters, compute_dtype))
            self._replace(dict(zip(parameters, self.flats[-1].shards, strict=True)))

    @property
    def nbytes(self) -> int:
        """The bytes of the gathered unit."""
        return sum(flat.nbytes for flat in self.flats)

    @property
    def name(self) -> str:
        """The name of its first parameter, for messages."""
        return self.flats[0].names[0]

    def place_fulls(self, buffer: Tensor) -> None:
        """Create the full parameters in a buffer of at least `nbytes` bytes."""
        fulls: dict[Tensor, Parameter] = {}
        for flat, part in zip(self.flats, buffer.split([*map(attrgetter("nbytes"), self.flats)]), strict=True):
            flat.place_fulls(part)
            fulls |= zip(flat.shards, flat.fulls, strict=True)
        self._places = [
            Place(owner, name, value, fulls[value])
            for owner in self._owners
            for name, value in owner.items()
            if value in fulls
        ]

    def show(self, full: bool) -> None:
        """Let the modules see the full parameters, or the shards."""
        if full is not self._shows_full:
            for place in self._places:
                place.owner[place.name] = place.full if full else place.shard
            self._shows_full = full

    def refuse_gradients(self) -> None:
        """Raise RuntimeError for a gradient that was computed while the unit was not gathered: it may be wrong."""
        for flat in self.flats:
            for name, full in zip(flat.names, flat.fulls, strict=True):
                if full.grad is not None:
                    raise RuntimeError(
                        f"the gradient of {name} was computed without its unit: a unit must return its results as "
                        "tensors, or in lists, tuples, dictionaries and dataclasses, and use its parameters only in "
                        "its forward pass"
                    )

    def drop_gradients(self) -> None:
        """Drop the full gradients that were not sent, and stop expecting backward passes."""
        self.awaited.clear()
        self.went_backward = False
        for flat in self.flats:
            for full in flat.fulls:
                full.grad = None

    def _replace(self, shards: Mapping[Tensor, Parameter]) -> None:
        for owner in self._owners:
            owner.update({name: shards[value] for name, value in owner.items() if value in shards})


def find_groups(root: nn.Module, shard: Rule | None) -> list[Group]:
    """Return the groups that become units, in definition order.

    Raises ValueError if there is nothing to shard, if a parameter to shard has hooks or also belongs to a module that
    is not sharded, or if such parameters are on several devices.
    """
    found = [
        (module, _matrices(module) if shard is None else list(module.parameters()))
        for module in _outermost(root, shard or is_matrix_layer)
    ]
    groups = _joined((module, parameters) for module, parameters in found if parameters)
    if not groups:
        what = "no module has a 2-D weight" if shard is None else "shard is true for no module with parameters"
        raise ValueError(f"nothing to shard: {what}")
    _check(root, groups)
    return groups


def is_matrix_layer(module: nn.Module) -> bool:
    """Tell whether a module is sharded by default: it has a 2-D `weight`, or is torch's attention.

    Attention reads the weights of its layers without calling them.
    """
    weight = dict(module.named_parameters(recurse=False)).get("weight")
    return (weight is not None and weight.dim() == 2) or isinstance(module, nn.MultiheadAttention)


def _matrices(module: nn.Module) -> list[Parameter]:
    return [parameter for parameter in module.parameters() if parameter.dim() == 2]


def _outermost(module: nn.Module, wanted: Rule) -> Iterator[nn.Module]:
    """Yield the outermost modules that match."""
    if wanted(module):
        yield module
    else:
        for child in module.children():
            yield from _outermost(child, wanted)


def _joined(found: Iterable[tuple[nn.Module, list[Parameter]]]) -> list[Group]:
    """Make a group of each module, and a single group of modules that share a parameter."""
    groups: list[Group] = []
    for module, parameters in found:
        sharing = [entry for entry in groups if any(parameter in entry.members for parameter in parameters)]
        joined = Group([], {})
        for entry in [*sharing, Group([module], dict.fromkeys(parameters))]:
            joined.modules += entry.modules
            joined.members |= entry.members
        position = groups.index(sharing[0]) if sharing else len(groups)
        groups = [entry for entry in groups if entry not in sharing]
        groups.insert(position, joined)
    return groups


def _check(root: nn.Module, groups: list[Group]) -> None:
    inside = {inner for entry in groups for module in entry.modules for inner in module.modules()}
    sharded = {parameter for entry in groups for parameter in entry.members}
    for path, module in root.named_modules():
        for name, parameter in module.named_parameters(path, recurse=False):
            if parameter in sharded and has_gradient_hooks(parameter):
                raise ValueError(f"{name} {HOOKS_NOT_CALLED}")
            if parameter in sharded and module not in inside:
                raise ValueError(
                    f"{name} is also a weight of a module that is sharded, but not of this one: let shard be true for "
                    "a module that contains both"
                )
    devices = {str(parameter.device) for parameter in sharded}
    if len(devices) > 1:
        raise ValueError(f"parameters to shard must be on one device, got {', '.join(sorted(devices))}")


def _by_kind(parameters: Iterable[Parameter]) -> list[list[Parameter]]:
    kinds: dict[tuple[torch.dtype, bool], list[Parameter]] = defaultdict(list)
    for parameter in parameters:
        kinds[parameter.dtype, parameter.requires_grad].append(parameter)
    return list(kinds.values())
