"""Interfaces of other libraries, served by kvxfer."""
