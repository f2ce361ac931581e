"""One build: from a recipe to a layout, its steps, a forecast, a decision, and the record."""
