"""The prompt sets on which drafts are scored, and their loader."""

from __future__ import annotations

from cook.prompts.prompt_set import Prompt, PromptSet, load_prompts, select

__all__ = ["Prompt", "PromptSet", "load_prompts", "select"]
