"""Result documents and what is shown of them; reports read only records."""
