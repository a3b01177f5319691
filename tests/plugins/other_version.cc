// Of the same interface, by number, of another kvxfer.
#include "kvxfer/plugin.h"

extern "C" [[gnu::visibility("default")]] const kvxfer::BackendPlugin* kvxfer_backend_plugin() {
  static const kvxfer::BackendPlugin plugin = [] {
    kvxfer::BackendPlugin told = kvxfer::DescribePlugin("other_version", nullptr);
    told.kvxfer_version = "0.0.1";
    return told;
  }();
  return &plugin;
}
