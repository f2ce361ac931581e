"""The prompt sets on which drafts are scored, and their loader."""

from __future__ import annotations

from cook.prompts.load import Prompt, PromptSet, load_prompts, select

__all__ = ["Prompt", "PromptSet", "load_prompts", "select"]
