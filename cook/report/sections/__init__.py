"""The sections of a report, one a module: what is shown of a record, and its plot."""
