"""The backward of a stage in two parts: the gradient of its input, later those of its parameters.

    input -- A -- B -- C -- output       the way back from the output to the input: C, B, A
                  |    |
                  v    w                 parameters hang on B and C

I goes all the way back and notes what gradient B and C get. W starts again at B and at C, with
what was noted, and goes only to their own parameters: it does not go back through the stage a
second time. Where a parameter is used at several places, W does go back from the output, for that
parameter alone.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node


class WeightPart(NamedTuple):
    """A place from which W goes back: its outputs' edges, their gradients, its parameters."""

    edges: Sequence[GradientEdge]
    gradients: Sequence[Tensor]
    parameters: Sequence[Tensor]


def input_gradient(
    output: GradientEdge, gradient: Tensor, activation: Tensor, parameters: Iterable[Tensor]
) -> tuple[Tensor | None, list[WeightPart]]:
    """Return the gradient of a stage's input, and what W has to go on with.

    Parameters
    ----------
    output, gradient
        Where the stage's graph ends, and the gradient there. The graph is kept.
    activation
        The stage's input, a leaf of the graph.
    parameters
        Those whose gradients W will want.

    Examples
    --------
    >>> x, w = torch.tensor(2.0, requires_grad=True), torch.tensor(3.0, requires_grad=True)
    >>> output = torch.autograd.graph.get_gradient_edge(x * w)
    >>> of_input, parts = input_gradient(output, torch.tensor(10.0), x, [w])
    >>> of_input, weight_gradients(parts)
    (tensor(30.), [(tensor(3., requires_grad=True), tensor(20.))])
    """
    places, shared = places_of_use(output.node, activation, parameters)
    noted: dict[int, Any] = {}
    handles = [
        node.register_prehook(lambda gradients, place=place: noted.update({place: gradients}))
        for place, (node, _) in enumerate(places)
    ]
    try:
        of_input = None
        if activation.requires_grad:
            (of_input,) = torch.autograd.grad(
                output, [activation], gradient, retain_graph=True, allow_unused=True
            )
    finally:
        for handle in handles:
            handle.remove()
    parts = [
        WeightPart(
            [GradientEdge(places[place][0], number) for number, _ in present],
            [each for _, each in present],
            places[place][1],
        )
        for place, gradients in noted.items()
        if (present := [(n, each) for n, each in enumerate(gradients) if each is not None])
    ]
    if shared:
        parts.append(WeightPart([output], [gradient], shared))
    return of_input, parts


def weight_gradients(parts: Iterable[WeightPart]) -> list[tuple[Tensor, Tensor]]:
    """Return the parameters that a backward reaches, each with its gradient."""
    found = []
    for edges, gradients, parameters in parts:
        of_parameters = torch.autograd.grad(
            edges, parameters, gradients, retain_graph=True, allow_unused=True
        )
        found += [
            (parameter, each)
            for parameter, each in zip(parameters, of_parameters, strict=True)
            if each is not None
        ]
    return found


def places_of_use(
    root: Node, activation: Tensor, parameters: Iterable[Tensor]
) -> tuple[list[tuple[Node, list[Tensor]]], list[Tensor]]:
    """Return the nodes on the way to the input that parameters hang on, each with its own.

    And the other parameters: those that hang on several nodes, or all if no way leads to the input.
    """
    wanted = {id(parameter): parameter for parameter in parameters}
    on_the_way: dict[Node, None] = {}  # a set, in a fixed order
    hanging: dict[Node, set[int]] = {}  # on a node: parameters that it reaches off the way
    for node in _inputs_first(root):
        leaf = getattr(node, "variable", None)
        below = [child for child, _ in node.next_functions if child is not None]
        if leaf is activation or any(child in on_the_way for child in below):
            on_the_way[node] = None
        reached = {id(leaf)} & wanted.keys()
        hanging[node] = reached.union(*(hanging[c] for c in below if c not in on_the_way))
    if root not in on_the_way:
        return [], list(wanted.values())
    uses = Counter(number for node in on_the_way for number in hanging[node])
    places = []
    for node in on_the_way:
        own = [each for number, each in wanted.items() if number in hanging[node]]
        if once := [each for each in own if uses[id(each)] == 1]:
            places.append((node, once))
    return places, [each for number, each in wanted.items() if uses[number] > 1]


def _inputs_first(root: Node) -> list[Node]:
    """Return the nodes of a graph, each after those that its backward goes on to."""
    found: dict[Node, None] = {}
    entered: set[Node | None] = {None}  # None: an edge that leads nowhere
    to_do = [root]
    while to_do:
        node = to_do[-1]
        if node in entered:
            to_do.pop()
            found.setdefault(node)
            continue
        entered.add(node)
        to_do += [child for child, _ in node.next_functions if child not in entered]
    return list(found)
