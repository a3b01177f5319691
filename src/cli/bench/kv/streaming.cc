// --measure streaming: a prefill rank sends each layer once it is computed, while the next layer is
// computed. The measured time ends when decode knows that the last layer has arrived.

#include <array>
#include <atomic>

#include "absl/strings/str_cat.h"
#include "src/cli/bench/kv/modes.h"
#include "src/cli/bench/kv/source.h"
#include "src/cli/common/stats.h"
#include "src/cli/common/units.h"

namespace kvxfer::cli::kv_bench {
namespace {

// The most transfer time that may remain after the last layer is computed, in transfer times of a
// single layer; with flags.
constexpr double kGoal = 1.3;

// How a layer is announced once it is computed.
enum ReadyBy : size_t {
  kCalls,  // by calling WriteBlocks for that layer
  kFlags,  // by setting its ready flag: all WriteBlocks calls were made before the first layer
};
constexpr size_t kWays = 2;

struct StreamWay {
  std::vector<double> post_us{};  // in WriteBlocks calls, for all layers
  std::vector<double> last_us{};  // until the last layer has arrived
  std::vector<double> exposed{};  // of a turn: (last - compute) / transfer time of one layer
};

struct StreamFigures {
  std::vector<double> compute_us{};  // all layers
  std::vector<double> waited_us{};   // time in which this thread was ready and had no CPU
  std::vector<double> layer_us{};    // to transfer one layer by itself
  std::array<StreamWay, kWays> ways{};

  Outcome Report(const Source& source, int64_t layer_ns) const;
};

double Us(int64_t ns) { return static_cast<double>(ns) / 1e3; }

class StreamRun {
 public:
  StreamRun(const Source& source, const Options& options)
      : source_(source), layer_ns_(options.layer_time.count()), rounds_(options.iters) {}

  absl::StatusOr<Outcome> Measure() {
    StreamFigures figures;
    // Connects, touches all memory, and lets CheckTarget compare what arrived.
    for (uint32_t i = 0; i < 2; ++i) {
      StreamFigures warm_up;
      if (absl::Status status = Turn(warm_up); !status.ok()) return status;
    }
    if (absl::Status status = source_.CheckTarget(); !status.ok()) return status;
    for (uint32_t i = 0; i < rounds_; ++i) {
      if (absl::Status status = Turn(figures); !status.ok()) return status;
    }
    return figures.Report(source_, layer_ns_);
  }

 private:
  absl::Status Turn(StreamFigures& figures) {
    const auto layer = Move(1, kCalls, /*compute=*/false);
    if (!layer.ok()) return layer.status();
    figures.layer_us.push_back(Us(layer->took));
    for (const ReadyBy way : {kCalls, kFlags}) {
      const auto all = Move(source_.one().kv.layers, way, /*compute=*/true);
      if (!all.ok()) return all.status();
      figures.compute_us.push_back(Us(all->compute));
      figures.waited_us.push_back(Us(all->waited));
      StreamWay& of = figures.ways[way];
      of.post_us.push_back(Us(all->post));
      of.last_us.push_back(Us(all->took));
      of.exposed.push_back(static_cast<double>(all->took - all->compute) /
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

  // Moves the first `layers` layers of a request, one by one.
  absl::StatusOr<Times> Move(uint32_t layers, ReadyBy way, bool compute) {
    const std::string name = absl::StrCat("request ", ++requests_);
    absl::Status status = source_.Tell({{"do", "wait"}, {"request", name}, {"layers", layers}});
    if (!status.ok()) return status;
    Spin(1'000'000);  // by then the target waits
    Times times;
    std::vector<Transfer> posted;
    std::vector<std::atomic<uint32_t>> ready(layers);
    const auto post = [&](uint32_t layer) {
      const int64_t before = MonotonicNanoseconds();
      absl::Status made =
          source_.Post(name, layer, 1, posted, way == kFlags ? &ready[layer] : nullptr);
      times.post += MonotonicNanoseconds() - before;
      return made;
    };
    for (uint32_t layer = 0; way == kFlags && layer < layers && status.ok(); ++layer) {
      status = post(layer);
    }
    const int64_t waited = ThreadWaitedNs();
    const int64_t start = MonotonicNanoseconds();
    for (uint32_t layer = 0; layer < layers && status.ok(); ++layer) {
      if (compute) times.compute += Spin(layer_ns_);
      if (way == kCalls) {
        status = post(layer);
      } else {
        ready[layer].store(1, std::memory_order_release);
      }
    }
    times.waited = ThreadWaitedNs() - waited;
    // Whatever went wrong: once all transfers have ended, the agents no longer read the flags.
    for (const Transfer& transfer : posted) {
      if (!status.ok()) transfer.Cancel();
    }
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
  const int64_t layer_ns_;
  const uint32_t rounds_;
  uint64_t requests_ = 0;
};

Outcome StreamFigures::Report(const Source& source, int64_t layer_ns) const {
  const uint32_t layers = source.one().kv.layers;
  Outcome row = source.one().Row();
  row.json["layer_compute_us"] = Us(layer_ns);
  row.json["rounds"] = layer_us.size();
  row.json["one_layer_p99_us"] = Quantile(layer_us, 0.99);
  row.cells.push_back(absl::StrCat(source.ranks().size()));
  row.Count("layers", layers);
  row.Time("compute_us", Median(compute_us));
  row.Time("waited_for_cpu_us", Median(waited_us));
  row.Time("one_layer_us", Median(layer_us));
  for (const ReadyBy way : {kCalls, kFlags}) {
    Outcome of;
    of.Time("post_us", Median(ways[way].post_us));
    of.Time("last_layer_us", Median(ways[way].last_us));
    of.Number("exposed_layers", Median(ways[way].exposed), 2);
    of.Number("exposed_layers_p99", Quantile(ways[way].exposed, 0.99), 2);
    row.json[way == kCalls ? "calls" : "flags"] = of.json;
    row.cells.insert(row.cells.end(), of.cells.begin(), of.cells.end());
  }
  const bool bound = Median(layer_us) > Median(compute_us) / layers;
  const bool within = Median(ways[kFlags].exposed) <= kGoal;
  row.cells.emplace_back(bound ? "transfer-bound" : within ? "yes" : "no");
  return row;
}

}  // namespace

Mode StreamingMode() {
  return {.name = "streaming",
          .title = "requests layer by layer, while the next layer is computed",
          .iters = 30,
          .unit = "rounds",
          .computes = true,
          .columns =
              "model:15|tp:5|sources:7|layers:6|compute:7|CPU wait:8|one layer:9|"
              "calls: posting:14|last layer:10|exposed:7|p99:5|"
              "flags: posting:14|last layer:10|exposed:7|p99:5|within 1.3:14",
          .measure = [](const Source& source, const Options& options) {
            return StreamRun(source, options).Measure();
          }};
}

}  // namespace kvxfer::cli::kv_bench
