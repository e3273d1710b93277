"""Packages of MalleTrain for Debian and RPM systems. See docs/how-to/admin-install.md."""
