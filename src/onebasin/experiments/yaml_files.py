"""YAML that people write: plain values, every key once."""

from pathlib import Path
from typing import Any


def read_yaml(path: Path) -> Any:
    """The value in a YAML file, or a ValueError that says in one line why there is none.

    A key that a mapping has twice is an error: YAML's own reader keeps the last without a word.
    """
    import yaml

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            seen: set[str] = set()
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                    if key.value in seen:
                        line = key.start_mark.line + 1
                        raise ValueError(f"line {line} gives '{key.value}' a second time")
                    seen.add(key.value)
            return super().construct_mapping(node, deep)

    try:
        return yaml.load(path.read_text(encoding="utf-8"), Loader)  # a safe loader
    except RecursionError:
        raise ValueError("it nests too deeply") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(" ".join(str(error).split())) from None
