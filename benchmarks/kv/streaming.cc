// A rank of prefill has a layer after each compute phase and gives it away while it computes the
// next. What is measured ends where decode knows that the last layer is there.

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

constexpr double kGoal = 1.3;  // layers' transfer times after the last compute phase

struct Figures {
  std::vector<double> compute_us{};   // all layers
  std::vector<double> post_us{};      // the calls of WriteBlocks, all layers
  std::vector<double> post_cpu_us{};  // of this thread in them
  std::vector<double> waited_us{};    // of this thread, for a CPU
  std::vector<double> last_us{};      // until the last layer is there
  std::vector<double> layer_us{};     // one layer by itself
  std::vector<double> factors{};      // of a turn: (last - compute) / layer
  // The same without the calls for the layers before the last one: where others compute than who
  // calls, as a GPU, these take no time from it.
  std::vector<double> tails{};
};

double Us(int64_t ns) { return static_cast<double>(ns) / 1e3; }

// Computes for so long; returns how long it was.
int64_t Compute(int64_t ns) {
  const int64_t start = NowNs();
  while (NowNs() - start < ns) {
  }
  return NowNs() - start;
}

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
    const auto layer = Move(1, /*compute=*/false);
    if (!layer.ok()) return layer.status();
    const auto all = Move(source_.one().kv.layers, /*compute=*/true);
    if (!all.ok()) return all.status();
    figures.layer_us.push_back(Us(layer->took));
    figures.last_us.push_back(Us(all->took));
    figures.compute_us.push_back(Us(all->compute));
    figures.post_us.push_back(Us(all->post));
    figures.post_cpu_us.push_back(Us(all->post_cpu));
    figures.waited_us.push_back(Us(all->waited));
    const auto factor = [&](int64_t rest) {
      return static_cast<double>(rest) / static_cast<double>(layer->took);
    };
    const int64_t rest = all->took - all->compute;
    figures.factors.push_back(factor(rest));
    figures.tails.push_back(factor(rest - (all->post - all->last_post)));
    return absl::OkStatus();
  }

  struct Times {
    int64_t took = 0;
    int64_t compute = 0;
    int64_t post = 0;
    int64_t last_post = 0;  // of that, the last layer's
    int64_t post_cpu = 0;
    int64_t waited = 0;
  };

  // The first `layers` layers of a request, one by one.
  absl::StatusOr<Times> Move(uint32_t layers, bool compute) {
    const std::string name = absl::StrCat("request ", ++requests_);
    absl::Status status = source_.Tell({{"do", "wait"}, {"request", name}, {"layers", layers}});
    if (!status.ok()) return status;
    Compute(1'000'000);  // the target begins to wait
    Times times;
    std::vector<Transfer> posted;
    const int64_t waited = ThreadWaitedNs();
    const int64_t start = NowNs();
    for (uint32_t layer = 0; layer < layers; ++layer) {
      if (compute) times.compute += Compute(compute_ns_);
      const int64_t computed = NowNs();
      const int64_t cpu = ThreadCpuNs();
      status = source_.Post(name, layer, 1, posted);
      if (!status.ok()) return status;
      times.last_post = NowNs() - computed;
      times.post += times.last_post;
      times.post_cpu += ThreadCpuNs() - cpu;
    }
    status = source_.WaitAll(posted);
    const auto there = source_.Answer();
    if (status.ok()) status = there.status();
    if (status.ok()) status = source_.Forget(name);
    if (!status.ok()) return status;
    times.waited = ThreadWaitedNs() - waited;
    times.took = there->value("at", int64_t{0}) - start;
    return times;
  }

  const Source& source_;
  const int64_t compute_ns_;
  const uint32_t rounds_;
  uint64_t requests_ = 0;
};

Json ToJson(const Case& one, const Options& options, const Figures& figures) {
  return {{"model", one.model},
          {"prefill_tp", one.prefill.tp},
          {"decode_tp", one.decode.tp},
          {"layout_src", one.prefill.order},
          {"layout_dst", one.decode.order},
          {"tokens", one.tokens},
          {"layers", one.kv.layers},
          {"layer_compute_us", options.layer_us},
          {"rounds", figures.factors.size()},
          {"compute_us", Median(figures.compute_us)},
          {"post_us", Median(figures.post_us)},
          {"post_cpu_us", Median(figures.post_cpu_us)},
          {"waited_for_cpu_us", Median(figures.waited_us)},
          {"last_layer_us", Median(figures.last_us)},
          {"one_layer_us", Median(figures.layer_us)},
          {"one_layer_p99_us", Quantile(figures.layer_us, 0.99)},
          {"k", Median(figures.factors)},
          {"k_p99", Quantile(figures.factors, 0.99)},
          {"k_tail", Median(figures.tails)},
          {"k_tail_p99", Quantile(figures.tails, 0.99)}};
}

std::vector<std::string> Row(const Case& one, size_t sources, const Figures& figures) {
  const double k = Median(figures.factors);
  const double tail = Median(figures.tails);
  const double compute = Median(figures.compute_us) / one.kv.layers;
  const char* const within = Median(figures.layer_us) > compute ? "transfer-bound"
                             : k <= kGoal                       ? "k"
                             : tail <= kGoal                    ? "tail"
                                                                : "no";
  return {one.model,
          absl::StrCat(one.prefill.tp, ">", one.decode.tp),
          absl::StrCat(sources),
          absl::StrCat(one.kv.layers),
          FormatFixed(Median(figures.compute_us) / 1e3, 2),
          FormatFixed(Median(figures.post_us) / 1e3, 2),
          FormatFixed(Median(figures.post_cpu_us) / 1e3, 2),
          FormatFixed(Median(figures.waited_us) / 1e3, 2),
          FormatFixed(Median(figures.last_us) / 1e3, 2),
          FormatFixed(Median(figures.layer_us), 0),
          FormatFixed(k, 2),
          FormatFixed(tail, 2),
          FormatFixed(Quantile(figures.tails, 0.99), 2),
          within};
}

}  // namespace

absl::StatusOr<Json> MeasureStreaming(const std::vector<Case>& cases, const Options& options,
                                      cli::Channel& channel) {
  const cli::Table table({{"model", 15},
                          {"tp", 5},
                          {"sources", 7},
                          {"layers", 6},
                          {"compute ms", 10},
                          {"post ms", 7},
                          {"cpu ms", 6},
                          {"no cpu ms", 9},
                          {"last ms", 8},
                          {"1 layer us", 10},
                          {"k", 6},
                          {"k tail", 6},
                          {"p99", 6},
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
