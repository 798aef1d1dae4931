"""Storages that several processes write to and read from."""
