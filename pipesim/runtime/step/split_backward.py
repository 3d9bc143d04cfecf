"""The backward of a stage in two parts: the gradient of its input, later those of its parameters.

    input -- A -- B -- C -- output       the way back from the output to the input: C, B, A
                  |    |
                  v    w                 parameters hang on B and C

I goes all the way back and notes what gradient B and C get. W starts again at B and at C, with
what was noted, and goes only to their own parameters: it does not go back through the stage a
second time. Where a parameter is used at several places, W does go back from the output, for that
parameter alone.

Autograd lets go of a graph only from its end: what is saved between C and the output is free when
nobody holds the output any more, what is saved before C stays until W, whether W needs it or not.
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
    outputs: Sequence[GradientEdge],
    gradients: Sequence[Tensor],
    inputs: Sequence[Tensor],
    parameters: Iterable[Tensor],
) -> tuple[Sequence[Tensor | None], list[WeightPart]]:
    """Return the gradients of a stage's inputs, and the places from which W goes back.

    Parameters
    ----------
    outputs, gradients
        Edges at which the stage's graph ends, and their gradients. The graph is kept if parameters
        hang on it.
    inputs
        Leaves of the graph that want a gradient. If there are none, all is left to W.
    parameters
        Parameters whose gradients W is to find.

    Examples
    --------
    >>> x, w = torch.tensor(2.0, requires_grad=True), torch.tensor(3.0, requires_grad=True)
    >>> output = torch.autograd.graph.get_gradient_edge(x * w)
    >>> of_inputs, parts = input_gradient([output], [torch.tensor(10.0)], [x], [w])
    >>> of_inputs, weight_gradients(parts)
    ((tensor(30.),), [(tensor(3., requires_grad=True), tensor(20.))])
    """
    places, shared = places_of_use([output.node for output in outputs], inputs, parameters)
    noted: dict[int, Any] = {}
    handles = [
        node.register_prehook(lambda gradients, place=place: noted.update({place: gradients}))
        for place, (node, _) in enumerate(places)
    ]
    try:
        of_inputs: Sequence[Tensor | None] = ()
        if inputs:
            of_inputs = torch.autograd.grad(
                outputs,
                inputs,
                gradients,
                retain_graph=bool(places or shared),
                allow_unused=True,
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
        for place, received in noted.items()
        if (present := [(n, each) for n, each in enumerate(received) if each is not None])
    ]
    if shared:
        parts.append(WeightPart(outputs, gradients, shared))
    return of_inputs, parts


def weight_gradients(parts: Sequence[WeightPart]) -> list[tuple[Tensor, Tensor]]:
    """Return the parameters that a backward reaches, each with its gradient; free the graph."""
    found = []
    for number, (edges, gradients, parameters) in enumerate(parts, start=1):
        of_parameters = torch.autograd.grad(
            edges, parameters, gradients, retain_graph=number < len(parts), allow_unused=True
        )
        found += [
            (parameter, each)
            for parameter, each in zip(parameters, of_parameters, strict=True)
            if each is not None
        ]
    return found


def places_of_use(
    roots: Sequence[Node], inputs: Sequence[Tensor], parameters: Iterable[Tensor]
) -> tuple[list[tuple[Node, list[Tensor]]], list[Tensor]]:
    """Return the nodes on the way to the inputs that parameters hang on, with the parameters.

    Second come the other parameters: those that hang on several nodes, or on a root from which
    no way leads to an input.
    """
    wanted = {id(parameter): parameter for parameter in parameters}
    goals = {id(tensor) for tensor in inputs}
    on_the_way: dict[Node, None] = {}  # a set, in a fixed order
    hanging: dict[Node, set[int]] = {}  # on a node: parameters that it reaches off the way
    for node in inputs_first(roots):
        leaf = id(leaf_of(node))
        below = [child for child, _ in node.next_functions if child is not None]
        if leaf in goals or any(child in on_the_way for child in below):
            on_the_way[node] = None
        reached = {leaf} & wanted.keys()
        hanging[node] = reached.union(*(hanging[c] for c in below if c not in on_the_way))
    uses = Counter(number for node in on_the_way for number in hanging[node])
    elsewhere = set[int]().union(*(hanging[root] for root in roots if root not in on_the_way))
    places = []
    for node in on_the_way:
        own = hanging[node] - elsewhere
        if once := [each for number, each in wanted.items() if number in own and uses[number] == 1]:
            places.append((node, once))
    shared = [each for n, each in wanted.items() if uses[n] > 1 or n in elsewhere]
    return places, shared


def leaf_of(node: Node) -> Tensor | None:
    """Return the tensor whose gradient a node accumulates; None for any other node."""
    # An autograd.Function may keep what it likes under this name, but its way goes on.
    return None if node.next_functions else getattr(node, "variable", None)


def inputs_first(roots: Iterable[Node]) -> list[Node]:
    """Return the nodes of a graph, each after the nodes that its backward leads to."""
    found: dict[Node, None] = {}
    entered: set[Node | None] = {None}  # None: an edge that leads nowhere
    to_do = [*roots]
    while to_do:
        node = to_do[-1]
        if node in entered:
            to_do.pop()
            found.setdefault(node)
            continue
        entered.add(node)
        to_do += [child for child, _ in node.next_functions if child not in entered]
    return list(found)
