"""Programs: started so that none outlives cook, watched, and how they ended."""
