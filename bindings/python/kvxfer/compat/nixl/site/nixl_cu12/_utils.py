from kvxfer.compat.nixl.utils import ba_buf, free_passthru, malloc_passthru, verify_transfer

__all__ = ["ba_buf", "free_passthru", "malloc_passthru", "verify_transfer"]
