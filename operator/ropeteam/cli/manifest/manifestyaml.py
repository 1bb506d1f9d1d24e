"""YAML as Kubernetes parses it: text, numbers, true and false, lists, maps with keys of text. No more.

Other YAML is refused with a sentence that names the line: a key twice, keys that are no text, values of other
types, a value that contains itself. Times are text, as for kubectl. Limits: MOST_NODES with all aliases
written out, DEEPEST levels, numbers of LONGEST_NUMBER characters.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import yaml

from ropeteam_trainer.contract.errors import RopeteamError

MOST_NODES = 100_000
DEEPEST = 100
LONGEST_NUMBER = 100
_TAG = "tag:yaml.org,2002:"
_TYPES = {"map", "seq", "str", "int", "float", "bool", "null", "merge"}


class ManifestError(RopeteamError, ValueError):
    """Invalid YAML. The text names the problem, the line, and what to change."""


def documents(text: str) -> Iterator[Any]:
    """Documents of a text, parsed one after another; an empty one is None. Raises ManifestError when the
    invalid one is reached."""
    try:
        yield from yaml.load_all(text, _Loader)
    except yaml.YAMLError as error:
        raise ManifestError(f"not valid YAML: {' '.join(str(error).split())}") from None


class _Loader(yaml.SafeLoader):
    """Loader of PyYAML that refuses what Kubernetes cannot have. Overridden methods have PyYAML's names: a
    text becomes nodes (compose_node), and nodes become values (construct_object)."""

    yaml_implicit_resolvers = {  # noqa: RUF012 (as in its base)
        letter: [row for row in rows if row[0] != f"{_TAG}timestamp"]
        for letter, rows in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = self._deepest = self._count = 0
        """Level of the node that is being read, deepest level below it so far, and number of nodes."""
        self._sizes: dict[yaml.Node, tuple[int, int]] = {}
        """Number of nodes and of further levels in each complete node, for its aliases."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Read one node with all below it. Nodes and levels are counted as if each alias were written out,
        before any value is constructed: a short text can mean billions of values."""
        event: yaml.Event = self.peek_event()  # type: ignore[no-untyped-call]
        count, deepest = self._count, self._deepest
        self._depth = self._deepest = self._depth + 1
        self._check_limits(event)
        node = super().compose_node(parent, index)
        assert node is not None
        if not isinstance(event, yaml.AliasEvent):
            _validate_node(node)
            self._count += 1
            self._sizes[node] = self._count - count, self._deepest - self._depth
        elif node in self._sizes:
            nodes, levels = self._sizes[node]
            self._count, self._deepest = self._count + nodes, self._depth + levels
        else:
            raise _error_at(event, f"*{event.anchor} is an alias inside its own anchor; write it out")
        self._check_limits(event)
        self._depth, self._deepest = self._depth - 1, max(deepest, self._deepest)
        return node

    def scan_flow_scalar_non_spaces(self, double: bool, start_mark: yaml.Mark) -> Any:
        """Read quoted text. PyYAML does not catch the errors of chr() for an escape like \\UFFFFFFFF."""
        try:
            return super().scan_flow_scalar_non_spaces(double, start_mark)
        except (ValueError, OverflowError):
            raise ManifestError(
                f"line {start_mark.line + 1}: \\U is followed by digits that are not a character of Unicode; "
                "correct them, or write \\\\U for a backslash"
            ) from None

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Value of a node. Raises ManifestError for `!!int x`, and for integers that a server cannot hold."""
        try:
            value = super().construct_object(node, deep)
        except (ValueError, LookupError):
            raise _error_at(node, f"a value does not fit its tag {node.tag}; leave the tag out") from None
        if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
            raise _error_at(node, f"{node.value} has more than 64 bits; put text in quotes")
        return value

    def _check_limits(self, event: yaml.Event) -> None:
        """Raise ManifestError if there are too many levels or nodes by now. event: for the line."""
        if self._deepest > DEEPEST:
            raise _error_at(event, f"more than {DEEPEST} nested levels; use fewer")
        if self._count > MOST_NODES:
            raise _error_at(event, f"more than {MOST_NODES} values with aliases expanded; make it smaller")


def _validate_node(node: yaml.Node) -> None:
    """Raise ManifestError for a tag, a scalar or a key that JSON cannot have. Nodes below it were
    validated."""
    kind = node.tag.removeprefix(_TAG)
    if kind not in _TYPES:
        raise _error_at(node, f"type {node.tag} does not exist in Kubernetes; leave the tag out")
    if isinstance(node, yaml.ScalarNode):
        _validate_scalar(node, kind)
    elif isinstance(node, yaml.MappingNode):
        _validate_keys(node)


def _validate_scalar(node: yaml.ScalarNode, kind: str) -> None:
    """Raise ManifestError for NUL and surrogates in text, and for numbers too long to convert, .inf and
    .nan."""
    if any(letter == "\0" or "\ud800" <= letter <= "\udfff" for letter in node.value):
        raise _error_at(node, "text with a character that commands and file names cannot contain; remove it")
    if kind not in ("int", "float"):
        return
    if len(node.value) > LONGEST_NUMBER:
        raise _error_at(node, f"a number of {len(node.value)} digits; put text in quotes")
    try:
        # 1_000 and 1:30 are numbers of YAML 1.1, but not of float()
        finite = kind == "int" or math.isfinite(float(node.value.replace("_", "").replace(":", "")))
    except ValueError:  # .inf, .nan
        finite = False
    if not finite:
        raise _error_at(node, f"{node.value} is not a number of JSON; put text in quotes")


def _validate_keys(node: yaml.MappingNode) -> None:
    """Raise ManifestError for a key that is not text, or listed twice: PyYAML would take the last,
    silently."""
    seen: set[str] = set()
    for key, _ in node.value:
        if key.tag not in (f"{_TAG}str", f"{_TAG}merge"):
            what = key.value if isinstance(key, yaml.ScalarNode) else "a list or a map"
            raise _error_at(key, f"a key is {what}, which is not text; put it in quotes")
        if key.value in seen:
            raise _error_at(key, f"key {key.value!r} is listed twice; keep one of the two")
        seen.add(key.value)


def _error_at(place: yaml.Node | yaml.Event, sentence: str) -> ManifestError:
    assert place.start_mark is not None  # events and nodes of a parser have one
    return ManifestError(f"line {place.start_mark.line + 1}: {sentence}")
