// `kvxfer topo`: what a person and a program get to read.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include "src/cli/common/exit_status.h"
#include "src/cli/topo/sysfs_tree.h"
#include "src/cli/topo/topology_fixture.h"
#include "tests/integration/cli_program.h"

namespace kvxfer::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The line that begins with `word`.
std::string LineOf(const std::string& text, const std::string& word) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string first;
    if (words >> first && first == word) return line;
  }
  return {};
}

TEST(Topo, MatrixNamesFabricDistanceAndRails) {
  const Result result = RunProgram({"topo", "--fixture", "connectx7-two-fabrics"});
  ASSERT_EQ(result.status, ExitStatus::kOk) << result.err;
  EXPECT_THAT(result.out, HasSubstr("synthetic"));
  std::istringstream line(LineOf(result.out, "mlx5_0"));
  std::vector<std::string> cells;
  for (std::string cell; line >> cell;) cells.push_back(cell);
  EXPECT_THAT(cells, ElementsAre("mlx5_0", "3c:00.0", "ibp60s0", "Fabric1", "400", "active",
                                 "node*", "far", "PF,", "8", "VFs"));
  // Expect the GPUs in a table of their own, for with them the first would be too wide.
  const std::string second =
      result.out.substr(result.out.find("\nport  ", result.out.find("PF, ")));
  std::istringstream distances(LineOf(second, "mlx5_0"));
  cells.clear();
  for (std::string cell; distances >> cell;) cells.push_back(cell);
  EXPECT_THAT(
      cells, ElementsAre("mlx5_0", "node*", "switch*", "node", "node", "far", "far", "far", "far"));
  // Expect eight virtual functions on one line, and all of them explained once.
  EXPECT_THAT(LineOf(result.out, "mlx5_6..mlx5_13"), HasSubstr("8 VFs of mlx5_0"));
  EXPECT_THAT(result.out, HasSubstr("mlx5_6..mlx5_37 (32)"));
  EXPECT_THAT(result.out, HasSubstr("port_guid"));
  EXPECT_THAT(result.out, HasSubstr("Fabric1: mlx5_0, then 2 node (x2), 1 far (x3); Fabric2: "
                                    "mlx5_4 mlx5_5"));
}

TEST(Topo, EveryFixtureFitsAWideTerminal) {
  for (const BuiltinTopology& fixture : BuiltinTopologies()) {
    const Result result = RunProgram({"topo", "--fixture", std::string(fixture.name)});
    ASSERT_EQ(result.status, ExitStatus::kOk) << result.err;
    std::istringstream lines(result.out);
    std::string line;
    std::getline(lines, line);  // the title and
    std::getline(lines, line);  // the source may be longer
    while (std::getline(lines, line)) EXPECT_LE(line.size(), 140u) << line;
  }
}

TEST(Topo, JsonHasTheSameFacts) {
  const Result result = RunProgram({"topo", "--fixture", "p5.48xlarge", "--json"});
  ASSERT_EQ(result.status, ExitStatus::kOk) << result.err;
  EXPECT_EQ(result.json["described"]["origin"], "synthetic");
  EXPECT_EQ(result.json["ports"].size(), 32u);
  EXPECT_EQ(result.json["ports"][0]["link_layer"], "EFA");
  EXPECT_EQ(result.json["version"], 2);
  EXPECT_EQ(result.json["devices"].size(), 32u);
  EXPECT_EQ(result.json["devices"][0]["vendor_id"], "0x1d0f");
  EXPECT_EQ(result.json["gpus"][0]["device_id"], "0x2330");
  const auto& gpu0 = result.json["memory"][2];
  EXPECT_EQ(gpu0["place"], "GPU 0");
  EXPECT_EQ(gpu0["distances"]["rdmap79s0:1"], "switch");
  EXPECT_EQ(gpu0["distances"]["rdmap201s0:1"], "far");
  size_t near = 0;
  for (const auto& rail : gpu0["rails"]) near += rail["near"] == true ? 1 : 0;
  EXPECT_EQ(near, 4u);
  EXPECT_EQ(gpu0["rails"].size(), 32u);
}

TEST(Topo, PortsAndFabricsAreTheUsers) {
  const Result result =
      RunProgram({"topo", "--fixture", "dgx-h100", "--fabric", "compute=mlx5_[03]", "--fabric",
                  "other=ibp79s0", "--ports", "fabric:compute,^ibp64s0", "--json"});
  ASSERT_EQ(result.status, ExitStatus::kOk) << result.err;
  const auto& node0 = result.json["memory"][0];
  ASSERT_EQ(node0["rails"].size(), 1u);
  EXPECT_EQ(node0["rails"][0]["port"], "mlx5_0:1");
  EXPECT_EQ(node0["rails"][0]["fabric"], "compute");
  EXPECT_EQ(node0["left_out"].size(), 11u);
}

TEST(Topo, VirtualFunctionsShareALineOnlyWhereTheyAreAlike) {
  // None is selected; all of a parent are down.
  const Result none =
      RunProgram({"topo", "--fixture", "connectx7-two-fabrics", "--ports", "mlx5_1"});
  ASSERT_EQ(none.status, ExitStatus::kOk) << none.err;
  EXPECT_THAT(LineOf(none.out, "mlx5_6..mlx5_13"), HasSubstr("8 VFs of mlx5_0"));
  const auto folder = TemporaryFolder::Make();
  ASSERT_TRUE(folder.ok()) << folder.status();
  const std::string copy = folder->path() + "/copy";
  ASSERT_EQ(RunProgram({"topo", "--fixture", "connectx7-two-fabrics", "--save", copy}).status,
            ExitStatus::kOk);
  // One of them is active now, and slower.
  SysfsTree tree;
  const std::string port = "/sys/class/infiniband/mlx5_8/ports/1/";
  tree.File(port + "state", "2: INIT");
  tree.File(port + "rate", "200 Gb/sec (2X NDR)");
  ASSERT_TRUE(tree.WriteTo(copy).ok());
  const Result one = RunProgram({"topo", "--root", copy, "--ports", "mlx5_1"});
  ASSERT_EQ(one.status, ExitStatus::kOk) << one.err;
  EXPECT_THAT(LineOf(one.out, "mlx5_6..mlx5_7"), HasSubstr("2 VFs of mlx5_0"));
  EXPECT_THAT(LineOf(one.out, "mlx5_8"), HasSubstr("200  init"));
}

TEST(Topo, ASavedHostReportsTheSame) {
  const auto folder = TemporaryFolder::Make();
  ASSERT_TRUE(folder.ok()) << folder.status();
  const std::string copy = folder->path() + "/copy";
  const Result saved = RunProgram({"topo", "--fixture", "dgx-h100", "--save", copy});
  ASSERT_EQ(saved.status, ExitStatus::kOk) << saved.err;
  EXPECT_THAT(saved.out, HasSubstr("kvxfer topo --root " + copy));
  Result there = RunProgram({"topo", "--root", copy, "--json"});
  Result here = RunProgram({"topo", "--fixture", "dgx-h100", "--json"});
  here.json["described"] = nullptr;
  EXPECT_EQ(there.json, here.json);
  EXPECT_THAT(RunProgram({"topo", "--save", copy}).err, HasSubstr("is not empty"));
  // Of this host, with what is in its /proc and /sys.
  const std::string own = folder->path() + "/own";
  ASSERT_EQ(RunProgram({"topo", "--save", own}).status, ExitStatus::kOk);
  there = RunProgram({"topo", "--root", own, "--json"});
  here = RunProgram({"topo", "--json"});
  EXPECT_EQ(there.json["nodes"], here.json["nodes"]);
  EXPECT_EQ(there.json["memory"], here.json["memory"]);
}

TEST(Topo, ThisHostCanBeLookedAt) {
  const Result here = RunProgram({"topo"});
  EXPECT_EQ(here.status, ExitStatus::kOk) << here.err;
  EXPECT_THAT(here.out, HasSubstr("N0"));
  EXPECT_EQ(RunProgram({"topo", "--root", "/", "--json"}).status, ExitStatus::kOk);
}

TEST(Topo, ErrorsSayWhatThereIs) {
  EXPECT_THAT(RunProgram({"topo", "--fixture", "dgx-h200"}).err,
              HasSubstr("did you mean dgx-h100?"));
  EXPECT_THAT(RunProgram({"topo", "--fixture", "dgx-h100", "--ports", "eth9"}).err,
              HasSubstr("mlx5_0:1 (ibp24s0, 0000:18:00.0, ib/fe80::)"));
  EXPECT_THAT(RunProgram({"topo", "--fixture", "plain-vm", "--ports", "eth9"}).err,
              HasSubstr("no RDMA port"));
  EXPECT_THAT(RunProgram({"topo", "--root", "/usr"}).err, HasSubstr("is not a sysfs tree"));
}

}  // namespace
}  // namespace kvxfer::cli
