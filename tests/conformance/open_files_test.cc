// Agents and backends that have ended hold no files: looked at when all tests of the program are
// over.
#include "tests/support/open_files.h"

#include <gtest/gtest.h>

namespace kvxfer::testing {
namespace {

// What libraries keep open for the process once they were used, and the few workers of UCX that are
// left behind on purpose (src/backends/ucx/worker.h), of peers that were stopped: each has tens.
// Over RDMA a worker also holds 200 MB.
constexpr size_t kMayStay = 96;

class FilesGivenBack : public ::testing::Environment {
 public:
  void SetUp() override { before_ = OpenFiles(); }
  void TearDown() override { EXPECT_LE(OpenFiles(), before_ + kMayStay); }

 private:
  size_t before_ = 0;
};

const ::testing::Environment* const kFilesGivenBack =
    ::testing::AddGlobalTestEnvironment(new FilesGivenBack);

}  // namespace
}  // namespace kvxfer::testing
