// Has a function of that name, for something else.
#include "kvxfer/plugin.h"

extern "C" [[gnu::visibility("default")]] const kvxfer::BackendPlugin* kvxfer_backend_plugin() {
  static const kvxfer::BackendPlugin plugin = [] {
    kvxfer::BackendPlugin told = kvxfer::DescribePlugin("other_magic", nullptr);
    told.magic = 7;
    return told;
  }();
  return &plugin;
}
