"""Commands of those who run the site."""
