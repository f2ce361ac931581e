"""Programs: started so that none outlives cook, watched, and told how they ended."""
