"""The base of context managers that only close something at their end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self


class Closing(ABC):
    """A context manager whose end is :meth:`close`."""

    @abstractmethod
    def close(self) -> None:
        """Give back what is held; again does nothing worse."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
