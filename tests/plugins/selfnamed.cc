// Its backend calls itself otherwise: "loopback".
#include "kvxfer/plugin.h"
#include "src/backends/loopback/factory.h"

KVXFER_BACKEND_PLUGIN(selfnamed, kvxfer::MakeLoopbackBackend)
