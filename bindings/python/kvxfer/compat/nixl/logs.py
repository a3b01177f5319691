"""Loggers, as NIXL names them. What is logged goes where the application sends it: no handler is
installed here. The drop-in itself logs as ``kvxfer.compat.nixl``."""

import logging

logger = logging.getLogger("kvxfer.compat.nixl")


def get_logger(name: str) -> logging.Logger:
    return logging.getLogger(f"nixl.{name.lstrip('_')}")
