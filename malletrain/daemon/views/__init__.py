"""What the daemon shows of itself: words, rows and figures."""
