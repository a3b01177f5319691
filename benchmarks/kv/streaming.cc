// A rank of prefill has a layer after each compute phase, which leaves while the next is computed.
// What is measured ends where decode knows that the last layer is there.

#include <array>
#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "benchmarks/kv/each_case.h"
#include "benchmarks/kv/modes.h"
#include "benchmarks/kv/source.h"
#include "benchmarks/kv/statistics.h"
#include "src/cli/table.h"
#include "src/cli/units.h"

namespace kvxfer::kv_bench {
namespace {

using cli::FormatFixed;
using cli::Json;

constexpr double kGoal = 1.3;  // layers' transfer times after the last compute phase, by flags

// Who says that a layer is there.
enum Way : size_t {
  kCalls,  // this thread, with a call for that layer
  kFlags,  // who computes it, with a flag: all calls were made before the first layer
};
constexpr size_t kWays = 2;

struct OfWay {
  std::vector<double> post_us{};  // the calls of WriteBlocks, all layers
  std::vector<double> last_us{};  // until the last layer is there
  std::vector<double> factors{};  // of a turn: (last - compute) / layer
};

struct Figures {
  std::vector<double> compute_us{};  // all layers
  std::vector<double> waited_us{};   // of this thread, for a CPU
  std::vector<double> layer_us{};    // one layer by itself
  std::array<OfWay, kWays> ways{};
};

double Us(int64_t ns) { return static_cast<double>(ns) / 1e3; }

class Streaming {
 public:
  Streaming(const Source& source, const Options& options)
      : source_(source), compute_ns_(int64_t{options.layer_us} * 1000), rounds_(options.rounds) {}

  absl::StatusOr<Figures> Measure() {
    Figures figures;
    // Connects, touches all memory, and shows that it comes to where it belongs.
    for (uint32_t i = 0; i < 2; ++i) {
      Figures warm_up;
      if (absl::Status status = Turn(warm_up); !status.ok()) return status;
    }
    if (absl::Status status = source_.CheckTarget(); !status.ok()) return status;
    for (uint32_t i = 0; i < rounds_; ++i) {
      if (absl::Status status = Turn(figures); !status.ok()) return status;
    }
    return figures;
  }

 private:
  absl::Status Turn(Figures& figures) {
    const auto layer = Move(1, kCalls, /*compute=*/false);
    if (!layer.ok()) return layer.status();
    figures.layer_us.push_back(Us(layer->took));
    for (const Way way : {kCalls, kFlags}) {
      const auto all = Move(source_.one().kv.layers, way, /*compute=*/true);
      if (!all.ok()) return all.status();
      figures.compute_us.push_back(Us(all->compute));
      figures.waited_us.push_back(Us(all->waited));
      OfWay& of = figures.ways[way];
      of.post_us.push_back(Us(all->post));
      of.last_us.push_back(Us(all->took));
      of.factors.push_back(static_cast<double>(all->took - all->compute) /
                           static_cast<double>(layer->took));
    }
    return absl::OkStatus();
  }

  struct Times {
    int64_t took = 0;
    int64_t compute = 0;
    int64_t post = 0;
    int64_t waited = 0;
  };

  // The first `layers` layers of a request, one by one.
  absl::StatusOr<Times> Move(uint32_t layers, Way way, bool compute) {
    const std::string name = absl::StrCat("request ", ++requests_);
    absl::Status status = source_.Tell({{"do", "wait"}, {"request", name}, {"layers", layers}});
    if (!status.ok()) return status;
    Spin(1'000'000);  // the target begins to wait
    Times times;
    std::vector<Transfer> posted;
    std::vector<std::atomic<uint32_t>> ready(layers);
    const auto post = [&](uint32_t layer) {
      const int64_t before = NowNs();
      absl::Status made =
          source_.Post(name, layer, 1, posted, way == kFlags ? &ready[layer] : nullptr);
      times.post += NowNs() - before;
      return made;
    };
    for (uint32_t layer = 0; way == kFlags && layer < layers && status.ok(); ++layer) {
      status = post(layer);
    }
    const int64_t waited = ThreadWaitedNs();
    const int64_t start = NowNs();
    for (uint32_t layer = 0; layer < layers && status.ok(); ++layer) {
      if (compute) times.compute += Spin(compute_ns_);
      if (way == kCalls) {
        status = post(layer);
      } else {
        ready[layer].store(1, std::memory_order_release);
      }
    }
    times.waited = ThreadWaitedNs() - waited;
    // Whatever went wrong: nobody looks at the flags any more.
    const absl::Status ended = source_.WaitAll(posted);
    if (!status.ok()) return status;
    const auto there = source_.Answer();
    status.Update(ended);
    status.Update(there.status());
    if (status.ok()) status = source_.Forget(name);
    if (!status.ok()) return status;
    times.took = there->value("at", int64_t{0}) - start;
    return times;
  }

  const Source& source_;
  const int64_t compute_ns_;
  const uint32_t rounds_;
  uint64_t requests_ = 0;
};

Json ToJson(const Case& one, const Options& options, const Figures& figures) {
  const auto of = [&](Way way) {
    const OfWay& figured = figures.ways[way];
    return Json{{"post_us", Median(figured.post_us)},
                {"last_layer_us", Median(figured.last_us)},
                {"k", Median(figured.factors)},
                {"k_p99", Quantile(figured.factors, 0.99)}};
  };
  return {{"model", one.model},
          {"prefill_tp", one.prefill.tp},
          {"decode_tp", one.decode.tp},
          {"layout_src", one.prefill.order},
          {"layout_dst", one.decode.order},
          {"tokens", one.tokens},
          {"layers", one.kv.layers},
          {"layer_compute_us", options.layer_us},
          {"rounds", figures.layer_us.size()},
          {"compute_us", Median(figures.compute_us)},
          {"waited_for_cpu_us", Median(figures.waited_us)},
          {"one_layer_us", Median(figures.layer_us)},
          {"one_layer_p99_us", Quantile(figures.layer_us, 0.99)},
          {"calls", of(kCalls)},
          {"flags", of(kFlags)}};
}

std::vector<std::string> Row(const Case& one, size_t sources, const Figures& figures) {
  const double compute = Median(figures.compute_us) / one.kv.layers;
  std::vector<std::string> cells = {one.model,
                                    absl::StrCat(one.prefill.tp, ">", one.decode.tp),
                                    absl::StrCat(sources),
                                    absl::StrCat(one.kv.layers),
                                    FormatFixed(Median(figures.compute_us) / 1e3, 2),
                                    FormatFixed(Median(figures.waited_us) / 1e3, 2),
                                    FormatFixed(Median(figures.layer_us), 0)};
  for (const Way way : {kCalls, kFlags}) {
    const OfWay& of = figures.ways[way];
    cells.push_back(FormatFixed(Median(of.post_us) / 1e3, 2));
    cells.push_back(FormatFixed(Median(of.last_us) / 1e3, 2));
    cells.push_back(FormatFixed(Median(of.factors), 2));
    cells.push_back(FormatFixed(Quantile(of.factors, 0.99), 2));
  }
  const bool bound = Median(figures.layer_us) > compute;
  const bool within = Median(figures.ways[kFlags].factors) <= kGoal;
  cells.push_back(bound ? "transfer-bound" : within ? "yes" : "no");
  return cells;
}

}  // namespace

absl::StatusOr<Json> MeasureStreaming(const std::vector<Case>& cases, const Options& options,
                                      cli::Channel& channel) {
  const cli::Table table({{"model", 15},
                          {"tp", 5},
                          {"sources", 7},
                          {"layers", 6},
                          {"compute ms", 10},
                          {"no cpu ms", 9},
                          {"1 layer us", 10},
                          {"calls ms", 8},
                          {"last ms", 8},
                          {"k", 5},
                          {"p99", 5},
                          {"flags: calls ms", 15},
                          {"last ms", 8},
                          {"k", 5},
                          {"p99", 5},
                          {"within 1.3", 14}});
  Json rows = Json::array();
  const auto measure = [&](const Source& source) -> absl::StatusOr<std::vector<std::string>> {
    const auto figures = Streaming(source, options).Measure();
    if (!figures.ok()) return figures.status();
    rows.push_back(ToJson(source.one(), options, *figures));
    return Row(source.one(), source.ranks().size(), *figures);
  };
  absl::Status status = EachCase(cases, /*alone=*/false, options, channel, table, measure);
  if (!status.ok()) return status;
  return rows;
}

}  // namespace kvxfer::kv_bench
