// `kvxfer doctor`: this host, another root, and the way to a server.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kvxfer/backend.h"
#include "src/cli/common/exit_status.h"
#include "src/cli/topo/sysfs_tree.h"
#include "tests/integration/cli_program.h"

namespace kvxfer::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const nlohmann::json& CheckOf(const nlohmann::json& report, const std::string& name) {
  for (const auto& check : report["checks"]) {
    if (check["name"] == name) return check;
  }
  ADD_FAILURE() << "no check " << name;
  return report;
}

TEST(Doctor, LooksAtThisHost) {
  const Result text = RunProgram({"doctor"});
  // What is wrong with the machine that runs the tests is not what is tested.
  EXPECT_TRUE(text.status == ExitStatus::kOk || text.status == ExitStatus::kFailed) << text.err;
  EXPECT_THAT(text.out, HasSubstr("not applicable"));
  const Result json = RunProgram({"doctor", "--json"});
  EXPECT_EQ(json.status, text.status);
  EXPECT_EQ(json.json["checks"].size(), 35u);
  EXPECT_EQ(CheckOf(json.json, "backends")["severity"], "ok");
  EXPECT_THAT(CheckOf(json.json, "backends")["findings"][0]["what"].get<std::string>(),
              AllOf(HasSubstr("shm "), HasSubstr(" tcp;")));
}

TEST(Doctor, TellsOfAnotherRootByItsStatus) {
  const auto folder = TemporaryFolder::Make();
  ASSERT_TRUE(folder.ok()) << folder.status();
  const std::vector<std::string> look = {"doctor", "--json", "--root", folder->path()};
  SysfsTree tree;
  tree.Folder("/sys/class/infiniband");
  tree.File("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size", "2097152");
  tree.File("/proc/sys/kernel/osrelease", "6.1.0");
  ASSERT_TRUE(tree.WriteTo(folder->path()).ok());
  const Result well = RunProgram(look);
  EXPECT_EQ(well.status, ExitStatus::kOk) << well.err;
  EXPECT_EQ(well.json["problems"], 0);
  EXPECT_EQ(well.json["warnings"], 0);

  SysfsTree yama;
  yama.File("/proc/sys/kernel/yama/ptrace_scope", "2");
  ASSERT_TRUE(yama.WriteTo(folder->path()).ok());
  EXPECT_EQ(RunProgram(look).status, ExitStatus::kOk);
  std::vector<std::string> strictly = look;
  strictly.emplace_back("--strict");
  const Result strict = RunProgram(strictly);
  EXPECT_EQ(strict.status, ExitStatus::kFailed);
  EXPECT_EQ(strict.err, "kvxfer: 0 problems, 1 warning (--strict): yama\n");
  EXPECT_EQ(strict.json["warnings"], 1);

  SysfsTree nic;
  nic.File("/sys/bus/pci/devices/0000:3c:00.0/vendor", "0x15b3");
  nic.File("/sys/bus/pci/devices/0000:3c:00.0/class", "0x020700");
  ASSERT_TRUE(nic.WriteTo(folder->path()).ok());
  const Result broken = RunProgram(look);
  EXPECT_EQ(broken.status, ExitStatus::kFailed);
  EXPECT_EQ(broken.err, "kvxfer: 1 problem: devices\n");
  EXPECT_THAT(CheckOf(broken.json, "devices")["findings"][0]["fix"].get<std::string>(),
              HasSubstr("modprobe mlx5_ib"));
}

TEST(Doctor, NamedFabricsAreNoWarning) {
  const Result unnamed =
      RunProgram({"doctor", "--fixture", "connectx7-pod", "--json", "--fabric", "Fabric1=net1"});
  EXPECT_EQ(CheckOf(unnamed.json, "fabrics")["severity"], "warning");
  const Result named = RunProgram({"doctor", "--fixture", "connectx7-pod", "--json"});
  EXPECT_EQ(CheckOf(named.json, "fabrics")["severity"], "ok");
}

// A `kvxfer serve` at a port of its own.
class Server {
 public:
  explicit Server(const std::vector<std::string>& more = {}) : program_(Arguments(more)) {
    const std::string line = program_.ReadLine();
    const auto json = nlohmann::json::parse(line, nullptr, false);
    EXPECT_TRUE(json.is_object()) << line << program_.err();
    if (json.is_object()) address_ = json["serving"];
  }
  const std::string& address() const { return address_; }

 private:
  static std::vector<std::string> Arguments(const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"serve", "--listen", "127.0.0.1:0", "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
  Program program_;
  std::string address_;
};

TEST(DoctorPeer, MeasuresEachWayToAServer) {
  const Server server;
  const Result result = RunProgram({"doctor", server.address(), "--json"});
  ASSERT_EQ(result.status, ExitStatus::kOk) << result.err;
  EXPECT_EQ(result.json["chosen"], "shm");
  ASSERT_EQ(result.json["paths"].size(), DefaultBackends().size());
  for (const auto& path : result.json["paths"]) {
    const std::string name = path["backend"];
    if (name != "shm" && name != "tcp") continue;
    EXPECT_EQ(path["reached"], true) << path.dump();
    EXPECT_GT(path["rtt_min_us"], 0.0);
    EXPECT_LE(path["rtt_min_us"], path["rtt_p50_us"]);
    EXPECT_LE(path["rtt_p50_us"], path["rtt_max_us"]);
    EXPECT_GT(path["gbps"], 0.0);
    EXPECT_EQ(path["rails"], name == "tcp" ? 2 : 1);
    EXPECT_EQ(path["here"]["paths"][0]["each_rail"].size(), name == "tcp" ? 2u : 1u);
    EXPECT_EQ(path["here"]["paths"][0]["each_rail"][0]["up"], true);
    EXPECT_EQ(path["here"]["paths"][0]["connected"], true) << path.dump();
    EXPECT_FALSE(path["there"].is_null());
  }
  // One process reaches another by no loopback, which is nobody's fault.
  EXPECT_EQ(result.json["paths"][0]["severity"], "n/a");
  const Result text = RunProgram({"doctor", server.address(), "--backend", "tcp", "--strict"});
  ASSERT_EQ(text.status, ExitStatus::kOk) << text.err;
  EXPECT_THAT(text.out, HasSubstr("reached"));
  EXPECT_THAT(text.out, HasSubstr("transfers to this server use shm"));
  EXPECT_THAT(text.out, Not(HasSubstr("shm   ")));
}

TEST(DoctorPeer, AWayThatIsNotThereIsAProblem) {
  const Server server({"--backend", "shm"});
  const Result result = RunProgram({"doctor", server.address()});
  EXPECT_EQ(result.status, ExitStatus::kFailed);
  EXPECT_THAT(result.out, HasSubstr("NOT REACHED"));
  EXPECT_THAT(result.out, HasSubstr("PROBLEM  tcp does not reach " + server.address()));
  EXPECT_THAT(result.out, HasSubstr("  fix   "));
  EXPECT_EQ(result.err, "kvxfer: " + server.address() + ": not reached over tcp\n");
  const Result none = RunProgram({"doctor", server.address(), "--backend", "loopback"});
  EXPECT_EQ(none.status, ExitStatus::kFailed);
  EXPECT_EQ(none.err, "kvxfer: " + server.address() + ": no backend reaches it\n");
}

}  // namespace
}  // namespace kvxfer::cli
