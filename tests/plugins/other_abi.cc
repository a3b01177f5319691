// Of a later version of the interface; what is behind the head is not to be read.
#include "kvxfer/plugin.h"

extern "C" [[gnu::visibility("default")]] const kvxfer::BackendPlugin* kvxfer_backend_plugin() {
  static const kvxfer::BackendPlugin plugin = [] {
    kvxfer::BackendPlugin told = kvxfer::DescribePlugin("other_abi", nullptr);
    told.abi += 1;
    told.kvxfer_version = "9.8.7";
    return told;
  }();
  return &plugin;
}
