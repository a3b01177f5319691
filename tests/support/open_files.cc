#include "tests/support/open_files.h"

#include <filesystem>
#include <iterator>

namespace kvxfer::testing {

size_t OpenFiles() {
  const std::filesystem::directory_iterator files("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(files), end(files)));
}

}  // namespace kvxfer::testing
