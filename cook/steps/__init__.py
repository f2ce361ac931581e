"""The steps of a build; each is one frozen dataclass that an executor can run."""
