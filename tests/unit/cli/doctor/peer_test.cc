// `kvxfer doctor host:port`: paths with rails that are down, and backends that reach nothing.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "src/cli/doctor/doctor.h"

namespace kvxfer::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

PeerReport ReportOf(const PeerPath& path) {
  return {.server = "node7:7471", .chosen = path.reached ? path.backend : "", .paths = {path}};
}

PeerPath TwoRails() {
  return {.backend = "verbs",
          .reached = true,
          .why = "RC",
          .rails = 2,
          .each_rail = {{.name = "mlx5_0:1 → mlx5_2:1",
                         .bytes_per_second = 48e9,
                         .round_trip = std::chrono::nanoseconds(2340)},
                        {.name = "mlx5_1:1 → mlx5_3:1", .bytes_per_second = 47e9}}};
}

TEST(DoctorPeerReport, EachRailIsALine) {
  const PeerPath path = TwoRails();
  const std::string text = PeerText(ReportOf(path));
  EXPECT_THAT(text, HasSubstr("  rail 0 mlx5_0:1 → mlx5_2:1  up  2.34 us  384.00 Gb/s\n"));
  EXPECT_THAT(text, HasSubstr("transfers to this server use verbs"));
  EXPECT_TRUE(PeerStatus(ReportOf(path), /*strict=*/true).ok());
}

TEST(DoctorPeerReport, ARailThatIsDownIsAWarning) {
  PeerPath path = TwoRails();
  path.each_rail[1].up = false;
  path.each_rail[1].why = "another fabric";
  JudgeRails(path);
  EXPECT_EQ(path.severity, Severity::kWarning);
  EXPECT_TRUE(path.reached);
  const std::string text = PeerText(ReportOf(path));
  EXPECT_THAT(text,
              HasSubstr("rail 1 mlx5_1:1 → mlx5_3:1  DOWN                        another fabric"));
  EXPECT_THAT(text, HasSubstr("WARNING  verbs has rails that are down"));
  EXPECT_THAT(text, HasSubstr("1 of 2 rails are down: rail 1 mlx5_1:1"));
  EXPECT_TRUE(PeerStatus(ReportOf(path), /*strict=*/false).ok());
  const absl::Status strict = PeerStatus(ReportOf(path), /*strict=*/true);
  EXPECT_EQ(strict.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(strict.message()), HasSubstr("not every rail of verbs"));
  EXPECT_EQ(PeerJson(ReportOf(path))["paths"][0]["reached"], true);
}

// GPU memory may use another backend than host memory.
TEST(DoctorPeerReport, GpusHaveAWayOfTheirOwn) {
  PeerReport report{.server = "node7:7471",
                    .chosen = "shm",
                    .paths = {{.backend = "cuda_ipc", .reached = true}, {.backend = "shm"}}};
  EXPECT_THAT(PeerText(report),
              HasSubstr("transfers to this server use shm; between GPUs cuda_ipc\n"));
  report.paths[0].reached = false;
  EXPECT_THAT(PeerText(report), HasSubstr("transfers to this server use shm\n"));
}

TEST(DoctorPeerReport, NoWayIsAProblem) {
  const PeerPath path{.backend = "tcp",
                      .severity = Severity::kProblem,
                      .why = "Connection refused",
                      .fix = "look at the firewall"};
  const std::string text = PeerText(ReportOf(path));
  EXPECT_THAT(text, HasSubstr("NOT REACHED"));
  EXPECT_THAT(text, HasSubstr("PROBLEM  tcp does not reach node7:7471"));
  EXPECT_THAT(text, HasSubstr("no backend carries transfers to this server"));
  EXPECT_THAT(text, Not(HasSubstr("rail 0")));
  EXPECT_EQ(PeerStatus(ReportOf(path), false).message(), "node7:7471: not reached over tcp");
  EXPECT_EQ(PeerJson(ReportOf(path))["chosen"], nullptr);
}

// A backend that is not built in is no problem, but it reaches nothing.
TEST(DoctorPeerReport, NothingTriedIsNotReached) {
  const PeerPath path{
      .backend = "ucx", .severity = Severity::kNotApplicable, .why = "not built in"};
  EXPECT_EQ(PeerStatus(ReportOf(path), false).message(), "node7:7471: no backend reaches it");
}

}  // namespace
}  // namespace kvxfer::cli
