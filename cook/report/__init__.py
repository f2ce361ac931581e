"""What is shown of a record: a document, its sections, and their forms. Reads records only."""
