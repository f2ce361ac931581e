"""Where each part of a recipe stands in its file."""

from __future__ import annotations

from dataclasses import dataclass

from cook.documents.tree import Keys, Location, MappingNode, Node, ScalarNode, SequenceNode, descend


@dataclass(frozen=True)
class Locations:
    """Finds places by keys and indexes: ``locations.at("quants", 0, "rules", 2)``."""

    file: str
    root: Node | None = None

    def at(self, *keys: str | int) -> Location:
        """The place of a value, or of the nearest thing around it that exists.

        A mapping or list stands where its key stands.
        """
        node, key, _ = self.find(keys)
        if node is None:
            return Location(self.file, 1, 1)
        return key.at if key is not None and not isinstance(node, ScalarNode) else node.at

    def key_at(self, *keys: str | int) -> Location:
        """The place of a key itself."""
        node, key, _ = self.find(keys)
        return key.at if key is not None else node.at if node else Location(self.file, 1, 1)

    def find(self, keys: Keys) -> tuple[Node | None, ScalarNode | None, int]:
        """The deepest node along ``keys``, its key node, and how many keys led to it.

        A single value may stand for a list of one, so an index into it is passed over. A rule
        is a pair: ``selector`` is its key, ``type`` its value.
        """
        if self.root is None:
            return None, None, 0
        node: Node = self.root
        key: ScalarNode | None = None
        for used, part in enumerate(keys):
            if part == 0 and not isinstance(node, SequenceNode):
                continue
            if _is_pair(node, part, keys[:used]):
                assert isinstance(node, MappingNode)
                ((name, value),) = node.values.items()
                pair_key = node.keys[name]
                return (pair_key, None, used + 1) if part == "selector" else (value, None, used + 1)
            *_, (node_below, key_below) = descend(node, (part,))
            if node_below is node:
                return node, key, used
            node, key = node_below, key_below
        return node, key, len(keys)


def _is_pair(node: Node, part: str | int, before: Keys) -> bool:
    return (
        isinstance(node, MappingNode)
        and part in ("selector", "type")
        and part not in node.values
        and len(node.values) == 1
        and len(before) >= 2
        and before[-2] == "rules"
    )
