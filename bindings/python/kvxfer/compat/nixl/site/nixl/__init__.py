"""NIXL's name for kvxfer.compat.nixl. In this folder, so that only those find it who ask.

As in NIXL every public name of its modules is one of the package too."""

from kvxfer.compat.nixl import names as _names

_bindings, _utils, _api = (_names.MODULES[each] for each in ("_bindings", "_utils", "_api"))
# nixl_thread_sync_t is in two of them; it is that of the Python interface, which comes last.
for _module in (_bindings, _utils, _api):
    globals().update(_names.public(_module))

_names.stand_for(__name__)
