#ifndef KVXFER_TESTS_SUPPORT_OPEN_FILES_H_
#define KVXFER_TESTS_SUPPORT_OPEN_FILES_H_

#include <sys/resource.h>

#include <cstddef>
#include <vector>

#include "src/core/base/own_fd.h"

namespace kvxfer::testing {

// Descriptors that this process has open.
size_t OpenFiles();

// While this lives, the process can open no descriptor, unless it closes one.
class NoDescriptors {
 public:
  NoDescriptors();
  ~NoDescriptors();
  NoDescriptors(const NoDescriptors&) = delete;
  NoDescriptors& operator=(const NoDescriptors&) = delete;
  // Takes those that another thread has closed since then.
  void TakeFreed();

 private:
  rlimit before_{};
  std::vector<OwnFd> taken_{};
};

// While this lives, the process may have that many open.
class DescriptorLimit {
 public:
  explicit DescriptorLimit(size_t most);
  ~DescriptorLimit();
  DescriptorLimit(const DescriptorLimit&) = delete;
  DescriptorLimit& operator=(const DescriptorLimit&) = delete;

 private:
  rlimit before_{};
};

}  // namespace kvxfer::testing

#endif  // KVXFER_TESTS_SUPPORT_OPEN_FILES_H_
