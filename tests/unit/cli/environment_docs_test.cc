// The documents list the environment variables that are read.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <string>

#include "src/cli/reference/describe.h"

namespace kvxfer {
namespace {

std::string TextOf(const std::string& path) {
  std::ifstream file(std::string(KVXFER_SOURCE_DIR) + "/" + path);
  EXPECT_TRUE(file.good()) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

// All matches of the first group of `pattern` in `text`.
std::set<std::string> AllOf(const std::string& text, const char* pattern) {
  const std::regex regex(pattern);
  std::set<std::string> found;
  for (std::sregex_iterator at(text.begin(), text.end(), regex), end; at != end; ++at) {
    found.insert((*at)[1]);
  }
  return found;
}

std::set<std::string> Read() {
  const std::vector<std::string> names = cli::AllVariables();
  return {names.begin(), names.end()};
}

TEST(EnvironmentDocs, TheTableHasEveryVariableThatIsRead) {
  EXPECT_EQ(AllOf(TextOf("docs/cli.md"), "\n\\| `(KVXFER_[A-Z0-9_]+)` \\|"), Read());
}

// Finds variables with a value. Options of CMake begin with -DKVXFER_ and are skipped.
TEST(EnvironmentDocs, ExamplesSetOnlyWhatIsRead) {
  std::set<std::string> known = Read();
  known.insert({"KVXFER_NIXL_DEADLINE", "KVXFER_CPU"});
  for (const char* path :
       {"README.md", "include/kvxfer/options.h", "docs/cli.md", "docs/fabrics.md", "docs/gpu.md",
        "docs/nixl.md", "docs/tcp.md", "docs/ucx.md", "docs/verbs.md", "docs/vllm.md",
        "examples/disagg_cpu/README.md", "examples/vllm_pd/README.md"}) {
    for (const std::string& name :
         AllOf(TextOf(path), "[^D](KVXFER_(?!TEST_|STANDIN_)[A-Z0-9_]+)=")) {
      EXPECT_EQ(known.count(name), 1u) << path << ": " << name;
    }
  }
}

}  // namespace
}  // namespace kvxfer
