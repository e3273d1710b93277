"""HTTP: the routes of people and of workers."""
