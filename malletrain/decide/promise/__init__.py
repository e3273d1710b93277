"""What the site promises its main queue: the reserve and the number of pilots that keep it. Pure."""
