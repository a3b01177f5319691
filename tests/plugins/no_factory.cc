// Has nothing that makes a backend.
#include "kvxfer/plugin.h"

extern "C" [[gnu::visibility("default")]] const kvxfer::BackendPlugin* kvxfer_backend_plugin() {
  static const kvxfer::BackendPlugin plugin = [] {
    kvxfer::BackendPlugin told = kvxfer::DescribePlugin("no_factory", nullptr);
    told.library_version = nullptr;
    return told;
  }();
  return &plugin;
}
