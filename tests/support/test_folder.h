#ifndef KVXFER_TESTS_SUPPORT_TEST_FOLDER_H_
#define KVXFER_TESTS_SUPPORT_TEST_FOLDER_H_

#include <errno.h>
#include <stdlib.h>

#include <filesystem>
#include <string>
#include <system_error>

namespace kvxfer::testing {

// An empty folder that no other test has, also none that runs at the same time in another process.
// It goes, with what it holds, when this dies.
class TestFolder {
 public:
  TestFolder() {
    std::string path = (std::filesystem::temp_directory_path() / "kvxfer-test-XXXXXX").string();
    if (mkdtemp(path.data()) == nullptr) {
      throw std::system_error(errno, std::generic_category(), path);
    }
    path_ = path;
  }
  ~TestFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace kvxfer::testing

#endif  // KVXFER_TESTS_SUPPORT_TEST_FOLDER_H_
