from kvxfer.compat.nixl.logs import get_logger

__all__ = ["get_logger"]
