// The plugin of another backend than its file says.
#include "kvxfer/plugin.h"
#include "src/backends/loopback/factory.h"

KVXFER_BACKEND_PLUGIN(somebody, kvxfer::MakeLoopbackBackend)
