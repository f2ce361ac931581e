"""Where each part of a recipe stands in its file."""

from __future__ import annotations

from dataclasses import dataclass

from cook.documents.tree import Keys, Location, MappingNode, Node, ScalarNode, SequenceNode


@dataclass(frozen=True)
class Locations:
    """Finds places by keys and indexes: ``locations.at("quants", 0, "rules", 2)``."""

    file: str
    root: Node | None = None

    def at(self, *keys: str | int) -> Location:
        """The place of a value, or of the nearest thing around it that exists.

        A mapping or list stands where its key stands.
        """
        node, key = self.find(keys)
        if node is None:
            return Location(self.file, 1, 1)
        return key.at if key is not None and not isinstance(node, ScalarNode) else node.at

    def key_at(self, *keys: str | int) -> Location:
        """The place of a key itself."""
        node, key = self.find(keys)
        return key.at if key is not None else node.at if node else Location(self.file, 1, 1)

    def find(self, keys: Keys) -> tuple[Node | None, ScalarNode | None]:
        """The deepest node along ``keys``, and its key node.

        A single value may stand for a list of one, so an index into it is passed over. A rule
        is a pair: ``selector`` is its key, ``type`` its value.
        """
        node, key = self.root, None
        for used, part in enumerate(keys):
            if isinstance(node, SequenceNode):
                if not isinstance(part, int) or part >= len(node.items):
                    return node, key
                node, key = node.items[part], None
            elif isinstance(node, MappingNode) and part in node.values:
                key = node.keys[str(part)]
                node = node.values[key.text]
            elif part == 0:
                continue
            elif isinstance(node, MappingNode) and _is_rule(node, keys[:used]):
                (pattern,) = node.keys.values()
                if part == "selector":
                    return pattern, None
                return (node.values[pattern.text], None) if part == "type" else (node, key)
            else:
                return node, key
        return node, key


def _is_rule(node: MappingNode, path: Keys) -> bool:
    return len(node.values) == 1 and len(path) >= 2 and path[-2] == "rules"
