// `kvxfer doctor host:port` over RDMA devices. Runs in the RDMA guest, with RDMA_VM_FABRICS="2 2":
// rxe0 and rxe1 are the ports of one fabric, rxe2 and rxe3 those of another.
#include <gmock/gmock.h>

#include <cstdlib>
#include <string>

#include "tests/integration/cli_program.h"

namespace kvxfer::cli {
namespace {

using ::testing::HasSubstr;

class CliDoctorVerbs : public ::testing::Test {
 protected:
  void SetUp() override {
    if (std::getenv("KVXFER_TEST_VERBS") == nullptr) {
      GTEST_SKIP() << "there are no RDMA devices (KVXFER_TEST_VERBS says that there are)";
    }
  }
};

// The server on some ports of this host.
class Served {
 public:
  explicit Served(const std::string& environment)
      : program_({"-c", "exec env " + environment +
                            " " KVXFER_CLI_PATH
                            " serve --listen 127.0.0.1:0 --backend verbs,tcp --json"},
                 "/bin/sh"),
        line_(program_.ReadLine()) {
    const nlohmann::json said = nlohmann::json::parse(line_, nullptr, false);
    if (said.is_object()) address_ = said.value("serving", "");
  }
  const std::string& address() const { return address_; }

 private:
  Program program_;
  const std::string line_;
  std::string address_;
};

Result Doctor(const std::string& environment, const std::string& address) {
  return RunShell("env " + environment + " \"$0\" doctor " + address + " --backend verbs --json");
}

TEST_F(CliDoctorVerbs, EachPairOfPortsIsTold) {
  const Served served("KVXFER_VERBS_DEVICES=rxe1,rxe3");
  ASSERT_NE(served.address(), "");
  // At first all code is cold, and emulated: connecting may exceed its time-out.
  Result result;
  for (int i = 0; i < 3; ++i) {
    result = Doctor("KVXFER_VERBS_DEVICES=rxe0,rxe2", served.address());
    if (result.status == ExitStatus::kOk) break;
  }
  EXPECT_EQ(result.status, ExitStatus::kOk) << result.out << result.err;
  const nlohmann::json& path = result.json["paths"][0];
  EXPECT_EQ(path["reached"], true) << result.out;
  EXPECT_GT(path["rtt_min_us"], 0) << result.out;
  EXPECT_GT(path["gbps"], 0) << result.out;
  const nlohmann::json& rails = path["here"]["paths"][0]["each_rail"];
  ASSERT_EQ(rails.size(), 2u) << result.out;
  for (const nlohmann::json& rail : rails) {
    EXPECT_THAT(rail["name"], ::testing::AnyOf("rxe0:1 → rxe1:1", "rxe2:1 → rxe3:1"));
    EXPECT_EQ(rail["up"], true);
    EXPECT_GT(rail["round_trip_ns"], 0);
    EXPECT_GT(rail["bytes_per_second"], 0);
  }
}

TEST_F(CliDoctorVerbs, APairInTwoFabricsIsNotReachedAndSaysWhy) {
  const Served served("KVXFER_VERBS_DEVICES=rxe3");
  ASSERT_NE(served.address(), "");
  const Result result = Doctor("KVXFER_VERBS_DEVICES=rxe0", served.address());
  EXPECT_EQ(result.status, ExitStatus::kFailed) << result.out << result.err;
  const nlohmann::json& path = result.json["paths"][0];
  EXPECT_EQ(path["reached"], false) << result.out;
  EXPECT_THAT(path["why"], HasSubstr("rxe0:1 → rxe3:1"));
}

TEST_F(CliDoctorVerbs, NamedFabricsAreToldApartBeforeAnythingIsTried) {
  const Served served("KVXFER_VERBS_DEVICES=10.77.1.0/24 KVXFER_VERBS_FABRICS=two=rdma3,rdma2");
  ASSERT_NE(served.address(), "");
  const Result result =
      Doctor("KVXFER_VERBS_DEVICES=rdma0 KVXFER_VERBS_FABRICS=one=rxe0,rxe1", served.address());
  EXPECT_EQ(result.status, ExitStatus::kFailed) << result.out << result.err;
  const nlohmann::json& path = result.json["paths"][0];
  // Either side may report it first.
  EXPECT_THAT(std::string(path["why"]),
              ::testing::AnyOf(HasSubstr("rxe0:1 is in fabric one, rxe3:1 in two"),
                               HasSubstr("rxe3:1 is in fabric two, rxe0:1 in one")))
      << result.out;
}

}  // namespace
}  // namespace kvxfer::cli
