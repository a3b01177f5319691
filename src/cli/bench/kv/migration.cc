// --measure migration: a request goes on while it moves. Each source rank copies the tokens that
// exist, then those that were added meanwhile, and the remaining ones while the request pauses. The
// pause is compared with the time to write the same remaining tokens by themselves. Other requests
// use the same workers all the time.

#include <algorithm>
#include <atomic>
#include <functional>
#include <thread>

#include "absl/strings/str_cat.h"
#include "kvxfer/kv_migration.h"
#include "src/cli/bench/kv/modes.h"
#include "src/cli/bench/kv/source.h"
#include "src/cli/common/stats.h"
#include "src/cli/common/units.h"

namespace kvxfer::cli::kv_bench {
namespace {

constexpr double kPauseGoal = 1.2;  // longest pause, in times of writing the last tokens alone

struct MigrationFigures {
  std::vector<double> pause_us{};
  std::vector<double> alone_us{};  // to write the same tokens by themselves
  std::vector<double> ratios{};
  std::vector<double> last_tokens{};
  std::vector<double> meanwhile{};   // tokens added before the switch
  std::vector<double> last_bytes{};  // on all ranks

  Outcome Report(const Case& one) const;
};

// Background load: writes all layers again and again as long as it lives.
class OtherRequests {
 public:
  explicit OtherRequests(const Source& source) {
    thread_ = std::thread([this, &source] {
      while (!stop_ && status_.ok()) status_ = source.Write("");
    });
  }
  ~OtherRequests() { (void)End(); }
  OtherRequests(const OtherRequests&) = delete;
  OtherRequests& operator=(const OtherRequests&) = delete;

  absl::Status End() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
    return status_;
  }

 private:
  std::atomic<bool> stop_{false};
  absl::Status status_;  // the thread writes it until it has ended
  std::thread thread_;
};

class MigrationRun {
 public:
  MigrationRun(const Source& source, const Options& options)
      : source_(source), token_ns_(options.layer_time.count()), rounds_(options.iters) {}

  absl::StatusOr<Outcome> Measure() {
    MigrationFigures figures;
    MigrationFigures warm_up;
    if (absl::Status status = Turn(warm_up, /*whole=*/true); !status.ok()) return status;
    // Before the background load, which writes the same memory.
    if (absl::Status status = source_.CheckTarget(); !status.ok()) return status;
    OtherRequests load(source_);
    for (uint32_t i = 0; i < rounds_; ++i) {
      if (absl::Status status = Turn(figures, /*whole=*/false); !status.ok()) return status;
    }
    if (absl::Status status = load.End(); !status.ok()) return status;
    return figures.Report(source_.one());
  }

 private:
  // Calls `act` on a thread for each source rank. Returns the longest of the times they return.
  absl::StatusOr<int64_t> OnEachRank(
      const std::function<absl::StatusOr<int64_t>(size_t rank)>& act) const {
    std::vector<absl::StatusOr<int64_t>> took(source_.ranks().size(), int64_t{0});
    {
      std::vector<std::jthread> threads;
      for (size_t rank = 0; rank < took.size(); ++rank) {
        threads.emplace_back([&, rank] { took[rank] = act(rank); });
      }
    }
    int64_t longest = 0;
    for (const auto& one : took) {
      if (!one.ok()) return one.status();
      longest = std::max(longest, *one);
    }
    return longest;
  }

  // `whole`: all tokens exist at the switch, so that CheckTarget can compare them.
  absl::Status Turn(MigrationFigures& figures, bool whole) {
    const std::string name = absl::StrCat("request ", ++requests_);
    const uint32_t layers = source_.one().kv.layers;
    absl::Status status = source_.Tell({{"do", "wait"}, {"request", name}, {"layers", layers}});
    if (!status.ok()) return status;
    std::vector<std::unique_ptr<KvMigration>> moves;
    for (const Rank& rank : source_.ranks()) {
      moves.push_back(
          std::make_unique<KvMigration>(&rank.agent(), source_.group(), RequestName(name),
                                        KvOptions{.transfer = {.deadline = kPatience}}));
    }
    uint64_t tokens = source_.one().tokens - kMostMeanwhile;
    const auto sent = Approach(moves, tokens);
    if (!sent.ok()) return sent.status();
    if (whole) tokens = source_.one().tokens;
    uint64_t bytes = 0;
    const auto pause = OnEachRank([&](size_t rank) -> absl::StatusOr<int64_t> {
      const auto done = moves[rank]->Switch(source_.Blocks(0, tokens), "", kPatience);
      if (!done.ok()) return done.status();
      std::atomic_ref(bytes) += done->bytes;
      return std::chrono::nanoseconds(done->pause).count();
    });
    if (!pause.ok()) return pause.status();
    // The target has received the whole request.
    status = source_.Answer().status();
    if (status.ok()) status = source_.Forget(name);
    if (!status.ok()) return status;
    // If no tokens remained, KvMigration sends the last token again.
    const uint64_t rest_from = std::min(*sent, tokens - 1);
    const auto alone = Alone(rest_from, tokens);
    if (!alone.ok()) return alone.status();
    figures.pause_us.push_back(static_cast<double>(*pause) / 1e3);
    figures.alone_us.push_back(static_cast<double>(*alone) / 1e3);
    figures.ratios.push_back(static_cast<double>(*pause) / static_cast<double>(*alone));
    figures.last_tokens.push_back(static_cast<double>(tokens - rest_from));
    figures.meanwhile.push_back(
        static_cast<double>(tokens - (source_.one().tokens - kMostMeanwhile)));
    figures.last_bytes.push_back(static_cast<double>(bytes));
    return absl::OkStatus();
  }

  // Copies the tokens that exist, and then those that were added during that copy. Returns how many
  // tokens were copied; `tokens` becomes the number of tokens that exist by then.
  absl::StatusOr<uint64_t> Approach(const std::vector<std::unique_ptr<KvMigration>>& moves,
                                    uint64_t& tokens) const {
    uint64_t sent = 0;
    for (int copy = 0; copy < 2; ++copy) {
      for (const auto& move : moves) {
        absl::Status status = move->Copy(source_.Blocks(0, tokens));
        if (!status.ok()) return status;
      }
      sent = tokens;
      const auto caught_up = [](const auto& move) { return move->CaughtUp(); };
      while (tokens < source_.one().tokens) {
        Spin(token_ns_);
        ++tokens;
        if (std::ranges::all_of(moves, caught_up)) break;
      }
    }
    return sent;
  }

  // Writes the tokens from `first` on as the last step of a migration does.
  absl::StatusOr<int64_t> Alone(uint64_t first, uint64_t tokens) {
    const std::string name = absl::StrCat("request ", ++requests_);
    auto took = OnEachRank([&](size_t rank) -> absl::StatusOr<int64_t> {
      const int64_t start = MonotonicNanoseconds();
      const auto transfer = source_.ranks()[rank].agent().WriteBlocks(
          source_.group(), source_.Blocks(first, tokens - first),
          {.request = RequestName(name), .transfer = {.notification = "", .deadline = kPatience}});
      if (!transfer.ok()) return transfer.status();
      if (absl::Status status = transfer->Wait(kPatience); !status.ok()) return status;
      return MonotonicNanoseconds() - start;
    });
    if (!took.ok()) return took;
    if (absl::Status status = source_.Forget(name); !status.ok()) return status;
    return took;
  }

  const Source& source_;
  const int64_t token_ns_;
  const uint32_t rounds_;
  uint64_t requests_ = 0;
};

Outcome MigrationFigures::Report(const Case& one) const {
  Outcome row = one.Row();
  row.json["rounds"] = ratios.size();
  row.Number("tokens_meanwhile", Median(meanwhile), 0);
  row.Number("last_tokens", Median(last_tokens), 0);
  const double bytes = Median(last_bytes);
  row.Add("last_bytes", bytes, FormatBytes(static_cast<uint64_t>(bytes)));
  row.Time("pause_us", Median(pause_us));
  row.Time("pause_p99_us", Quantile(pause_us, 0.99));
  row.Time("alone_us", Median(alone_us));
  row.Time("alone_p99_us", Quantile(alone_us, 0.99));
  row.Number("ratio", Median(ratios), 2);
  row.cells.emplace_back(Median(ratios) <= kPauseGoal ? "yes" : "no");
  return row;
}

}  // namespace

Mode MigrationMode() {
  return {.name = "migration",
          .title = "requests that go on while they move, beside other requests",
          .iters = 30,
          .unit = "requests of each model",
          .computes = true,
          .fewest_tokens = kMostMeanwhile + 1,
          .columns =
              "model:15|tp:5|tokens added:12|last tokens:11|last bytes:10|pause:7|p99:7|"
              "alone:7|p99:7|ratio:5|within 1.2:10",
          .measure = [](const Source& source, const Options& options) {
            return MigrationRun(source, options).Measure();
          }};
}

}  // namespace kvxfer::cli::kv_bench
