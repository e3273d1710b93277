"""What any service is to its machine: its log, its unit of systemd, its timers, its memory."""
