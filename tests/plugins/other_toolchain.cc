// Of another compiler.
#include "kvxfer/plugin.h"

extern "C" [[gnu::visibility("default")]] const kvxfer::BackendPlugin* kvxfer_backend_plugin() {
  static const kvxfer::BackendPlugin plugin = [] {
    kvxfer::BackendPlugin told = kvxfer::DescribePlugin("other_toolchain", nullptr);
    told.toolchain = "g++ 4, old strings";
    return told;
  }();
  return &plugin;
}
