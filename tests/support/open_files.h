#ifndef KVXFER_TESTS_SUPPORT_OPEN_FILES_H_
#define KVXFER_TESTS_SUPPORT_OPEN_FILES_H_

#include <cstddef>

namespace kvxfer::testing {

// Descriptors that this process has open.
size_t OpenFiles();

}  // namespace kvxfer::testing

#endif  // KVXFER_TESTS_SUPPORT_OPEN_FILES_H_
