"""The web page that the daemon serves: read-only, without anything from the internet."""
