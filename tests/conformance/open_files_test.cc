// Agents and backends that have ended hold no files: looked at when all tests of the program are
// over.
#include <gtest/gtest.h>

#include "tests/support/tcp_streams.h"

namespace kvxfer::testing {
namespace {

// What libraries keep open for the process once they were used, and the few workers of UCX that are
// left behind on purpose (src/backends/ucx/worker.h), of peers that were stopped: each has tens.
// Over RDMA a worker also holds 200 MB.
constexpr size_t kKeptByLibraries = 96;

class FilesGivenBack : public ::testing::Environment {
 public:
  void SetUp() override { before_ = OpenDescriptors(); }
  void TearDown() override { EXPECT_LE(OpenDescriptors(), before_ + kKeptByLibraries); }

 private:
  size_t before_ = 0;
};

const ::testing::Environment* const kFilesGivenBack =
    ::testing::AddGlobalTestEnvironment(new FilesGivenBack);

}  // namespace
}  // namespace kvxfer::testing
